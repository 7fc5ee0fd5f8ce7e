"""Measures PyTorch on the first CUDA device, with the shapes and units of bench_cuda.c. Prints JSON.

    python3 benchmarks/bench_cuda_torch.py >build/bench/torch.json

Without PyTorch or a device it exits with 77 and prints the reason.
"""

import importlib
import json
import sys
from typing import Any

from timing import shortest


def main() -> int:
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 77
    if not torch.cuda.is_available():
        print("skipped: PyTorch finds no CUDA device", file=sys.stderr)
        return 77

    def best_time(run: Any, n: int = 4) -> float:
        def several() -> None:
            for _ in range(n):
                run()
            torch.cuda.synchronize()

        for _ in range(2):
            run()
        torch.cuda.synchronize()
        return shortest(several, 1, 5) / n

    results: list[dict[str, Any]] = []
    host = torch.ones(2 << 30, dtype=torch.int8, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    seconds = best_time(lambda to=device, host=host: to.copy_(host, non_blocking=True), 1)
    results.append({"name": "upload of 2 GiB, pinned memory", "GB_per_s": host.numel() / seconds / 1e9})
    del host, device
    for name, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        for n in (8192, 512):
            w, x = torch.randn(8192, 8192, device="cuda", dtype=dtype), torch.randn(n, 8192, device="cuda", dtype=dtype)
            seconds = best_time(lambda w=w, x=x: x @ w.T)
            product, operations = f"mul_mat {name} m=8192 n={n} k=8192", 2 * 8192 * 8192 * n
            results.append({"name": product, "TFLOP_per_s": operations / seconds / 1e12})
            rows = torch.randn(n, 8192, device="cuda")
            seconds = best_time(lambda w=w, x=rows, dtype=dtype: x.to(dtype) @ w.T)
            results.append({"name": f"{product}, float rows made {name}", "TFLOP_per_s": operations / seconds / 1e12})
    # Dequantizes to f16 and then multiplies: bytes with a scale for each 32, and nibbles in half as many bytes.
    x = torch.randn(512, 8192, device="cuda", dtype=torch.float16)
    scale = torch.rand(8192, 256, 1, device="cuda", dtype=torch.float16)
    q8 = torch.randint(-127, 128, (8192, 256, 32), device="cuda", dtype=torch.int8)
    q4 = torch.randint(0, 256, (8192, 256, 16), device="cuda", dtype=torch.uint8)

    def of_bytes() -> Any:
        return x @ (q8.to(torch.float16) * scale).view(8192, 8192).T

    def of_nibbles() -> Any:
        q = torch.cat((q4 & 15, q4 >> 4), -1).to(torch.float16) - 8
        return x @ (q * scale).view(8192, 8192).T

    for name, run in (("q8_0", of_bytes), ("q4_0", of_nibbles)):
        results.append(
            {
                "name": f"dequantize {name}, then mul_mat m=8192 n=512 k=8192",
                "TFLOP_per_s": 2 * 8192 * 8192 * 512 / best_time(run) / 1e12,
            }
        )
    for name, dtype, causal in (("f16", torch.float16, True), ("bf16", torch.bfloat16, False)):
        q, k, v = (torch.randn(1, 32, 4096, 128, device="cuda", dtype=dtype) for _ in range(3))
        seconds = best_time(
            lambda q=q, k=k, v=v, c=causal: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=c)
        )
        flops = (2 if causal else 4) * 128 * 4096 * 4096 * 32
        results.append(
            {
                "name": f"flash_attn {name} n=4096 heads=32 d=128{' causal' if causal else ''}",
                "TFLOP_per_s": flops / seconds / 1e12,
            }
        )
    print(
        json.dumps({"device": torch.cuda.get_device_name(0), "torch": torch.__version__, "results": results}, indent=2)
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
