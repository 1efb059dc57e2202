"""Other people's attention, padded and packed, as peers of ours (see op_peers.py)."""

import importlib
import inspect
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from encoder_fast.benchmarks.op_shapes import OpShape
from encoder_fast.benchmarks.op_subjects import Subject, not_on_cuda

HALF = (torch.bfloat16, torch.float16)


def _padded_qkv(arguments: dict) -> dict:
    """Packed `(T, 3, H, D)` -> q, k, v `(B, H, S, D)` and the bool mask that a padded engine needs,
    or None.
    """
    batch, half = arguments["layout"], arguments["half"]
    qkv_T3HD = arguments["qkv_T3HD"]
    B, S = batch.B, batch.max_length
    rows_T = batch.padded_rows_T
    slots = qkv_T3HD.new_zeros(B * S, *qkv_T3HD.shape[1:]).index_copy(0, rows_T, qkv_T3HD)
    q, k, v = slots.unflatten(0, (B, S)).permute(2, 0, 3, 1, 4)
    return {"q": q, "k": k, "v": v, "mask": _mask(batch, half, qkv_T3HD.device)}


def _mask(batch, half: int | None, device) -> Tensor | None:
    B, S = batch.B, batch.max_length
    real_BS = torch.zeros(B * S, dtype=torch.bool, device=device)
    real_BS = real_BS.index_fill_(0, batch.padded_rows_T, True).view(B, 1, 1, S)
    if half is None:
        return None if real_BS.all() else real_BS
    column = torch.arange(S, device=device)
    distance = (column[:, None] - column).abs()
    # Padding sees itself, so that no row of scores is empty.
    return (real_BS & (distance <= half)) | (distance == 0)


def _packed(output: Tensor, arguments: dict) -> tuple[Tensor]:
    """`(B, H, S, D)` -> `(T, H, D)`."""
    rows_T = arguments["layout"].padded_rows_T
    return (output.transpose(1, 2).flatten(0, 1).index_select(0, rows_T),)


def _sdpa(q, k, v, mask, backend: SDPBackend | None = None) -> Tensor:
    if backend is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _half_only(shape: OpShape, dtype: torch.dtype, device: str, passes: str) -> str | None:
    return None if dtype in HALF else f"computes in bfloat16 and float16, not in {dtype}"


def _unmasked(shape: OpShape, dtype: torch.dtype, device: str, passes: str) -> str | None:
    if reason := _half_only(shape, dtype, device, passes):
        return reason
    full = "global" in shape.name and shape.tokens % shape.longest == 0
    return None if full and "mixed" not in shape.name else "takes no mask"


SDPA = Subject("attention", "peer sdpa", _sdpa, _padded_qkv, _packed)
SDPA_BACKENDS = (
    Subject(
        "attention",
        "peer sdpa cudnn",
        partial(_sdpa, backend=SDPBackend.CUDNN_ATTENTION),
        _padded_qkv,
        _packed,
        _half_only,
        not_on_cuda,
    ),
    Subject(
        "attention",
        "peer sdpa flash",
        partial(_sdpa, backend=SDPBackend.FLASH_ATTENTION),
        _padded_qkv,
        _packed,
        _unmasked,
        not_on_cuda,
    ),
)


def _varlen(arguments: dict) -> dict:
    """q, k, v `(T, H, D)`, offsets and the window `(left, right)`, (-1, -1) for global."""
    batch, half = arguments["layout"], arguments["half"]
    q, k, v = arguments["qkv_T3HD"].unbind(1)
    window = (-1, -1) if half is None else (half, half)
    return {
        "q": q,
        "k": k,
        "v": v,
        "ends": batch.cu_seqlens,
        "longest": batch.max_length,
        "window": window,
    }


def _torch_varlen(q, k, v, ends, longest, window) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    if window == (-1, -1):
        return varlen_attn(q, k, v, ends, ends, longest, longest)
    return varlen_attn(q, k, v, ends, ends, longest, longest, window_size=window)


def _no_torch_varlen(device: str) -> str | None:
    if reason := not_on_cuda(device):
        return reason
    try:
        importlib.import_module("torch.nn.attention.varlen")
    except ImportError:
        return f"torch {torch.__version__} has no varlen_attn"
    return None


def _torch_varlen_why_not(shape, dtype, device, passes) -> str | None:
    if reason := _half_only(shape, dtype, device, passes):
        return reason
    from torch.nn.attention.varlen import varlen_attn

    windows = "window_size" in inspect.signature(varlen_attn).parameters
    if "window" in shape.name and not windows:
        return f"varlen_attn of torch {torch.__version__} has no window"
    return None


FLASH_MODULES = {2: "flash_attn", 3: "flash_attn_interface", 4: "flash_attn.cute"}
"""Version of flash-attn -> the module that has its `flash_attn_varlen_func`."""


def _flash(q, k, v, ends, longest, window, version: int) -> Tensor:
    module = importlib.import_module(FLASH_MODULES[version])
    if version == 4 and window == (-1, -1):
        window = (None, None)
    out = module.flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q=ends,
        cu_seqlens_k=ends,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        window_size=window,
    )
    return out[0] if isinstance(out, tuple) else out


def _no_flash(device: str, version: int) -> str | None:
    if reason := not_on_cuda(device):
        return reason
    try:
        importlib.import_module(FLASH_MODULES[version])
    except ImportError as error:
        return f"flash-attn {version} is not installed: {error}"
    return None


FLASH = tuple(
    Subject(
        "attention",
        f"peer flash-attn {version}",
        partial(_flash, version=version),
        _varlen,
        why_not=_half_only,
        absent=partial(_no_flash, version=version),
    )
    for version in FLASH_MODULES
)
TORCH_VARLEN = Subject(
    "attention",
    "peer varlen_attn",
    _torch_varlen,
    _varlen,
    why_not=_torch_varlen_why_not,
    absent=_no_torch_varlen,
)

PEERS = (SDPA, *SDPA_BACKENDS, TORCH_VARLEN, *FLASH)
