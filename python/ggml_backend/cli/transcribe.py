"""``transcribe``: writes down what a WAV file says."""

from __future__ import annotations

import argparse
from pathlib import Path

from .._base.files import write_text
from .._base.terminal import Bar, print_json
from ..models.speech import SpeechModel
from ._models import _names, visible, whole_number
from .program import add_import, import_named

EXAMPLE = "whisper-tiny.en.gguf speech.wav"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL.gguf", help="a Whisper model")
    parser.add_argument("audio", metavar="AUDIO.wav", help="any rate and number of channels")
    parser.add_argument("--language", metavar="CODE", help="for example en (that of the first 30 seconds)")
    parser.add_argument("--translate", action="store_true", help="write English")
    parser.add_argument(
        "--beams", type=whole_number(1, 16), default=1, metavar="N", help="texts that are followed at once (1)"
    )
    parser.add_argument("--json", action="store_true", help="print text, segments and language as JSON")
    parser.add_argument("--srt", metavar="FILE", help="write subtitles there")
    parser.add_argument("--devices", default="CPU", help="in order of priority, for example CUDA0,CPU (CPU)")
    parser.add_argument("--threads", type=whole_number(), metavar="N", help="of the CPU (all)")
    add_import(parser)


def run(options: argparse.Namespace) -> int:
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
