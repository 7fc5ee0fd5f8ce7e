"""``transcribe``: writes down what a WAV file says."""

from __future__ import annotations

import argparse
from pathlib import Path

from .._base.files import write_text
from .._base.terminal import Bar, print_json
from ..models.speech import SpeechModel
from ._models import _names, visible, whole_number
from .program import add_import, import_named, need_output

EXAMPLE = "whisper-tiny.en.gguf speech.wav"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL.gguf", help="a Whisper model")
    parser.add_argument("audio", metavar="AUDIO.wav", help="speech, with any sample rate and number of channels")
    parser.add_argument(
        "--language",
        metavar="CODE",
        help="language of the speech, for example en (default: detect it in the first 30 seconds)",
    )
    parser.add_argument("--translate", action="store_true", help="translate to English")
    parser.add_argument(
        "--beams",
        type=whole_number(1, 16),
        default=1,
        metavar="N",
        help="follow N texts at once, which takes longer (default: 1)",
    )
    parser.add_argument("--json", action="store_true", help="print text, segments and language as JSON")
    parser.add_argument("--srt", metavar="FILE", help="write subtitles to a file")
    parser.add_argument(
        "--devices", default="CPU", help="devices in order of priority, for example CUDA0,CPU (default: CPU)"
    )
    parser.add_argument(
        "--threads", type=whole_number(), metavar="N", help="threads of the CPU (default: all processors)"
    )
    add_import(parser)


def run(options: argparse.Namespace) -> int:
    if options.json or not options.srt:
        need_output()
    import_named(options)
    with SpeechModel(options.model, _names(options.devices), n_threads=options.threads) as model:
        found = model.transcribe(
            Path(options.audio),
            language=options.language,
            task="translate" if options.translate else "transcribe",
            beams=options.beams,
            progress=Bar("transcribe", "s of audio", 100),
        )
    if options.srt:
        write_text(options.srt, found.srt())
    if options.json:
        print_json(found.to_dict())
    elif not options.srt:
        print(visible(found.text))
    return 0
