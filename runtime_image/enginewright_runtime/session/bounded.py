"""Bounds the memory of a session on the CPU, so that a request of any size fails alone.

ONNX Runtime allocates whatever a request's sizes ask for, and the kernel then kills the container. Sessions
that use an arena which is registered with ONNX Runtime's environment cannot take more than its maximum.
"""

from typing import Any, Final

import onnxruntime as ort

SHARED_ALLOCATOR: Final = "session.use_env_allocators"  # entry of a session's configuration
_SHRINK: Final = "memory.enable_memory_arena_shrinkage"  # entry of a run's configuration
_CPU_ARENA: Final = "cpu:0"
_AS_REQUESTED: Final = 1  # kSameAsRequested: the arena grows by no more than it needs
_DEFAULT: Final = -1


def limit_memory(most: int) -> None:
    """Let sessions that are made from now on with `SHARED_ALLOCATOR` have `most` bytes together."""
    arena = ort.OrtArenaCfg(
        {
            "max_mem": most,
            "arena_extend_strategy": _AS_REQUESTED,
            "initial_chunk_size_bytes": _DEFAULT,
            "max_dead_bytes_per_chunk": _DEFAULT,
        }
    )
    kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = ort.OrtMemoryInfo("Cpu", kind, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, arena)


class ShrinkingSession:
    """A session for `StoppableSession` whose arena returns memory after each run."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session

    def run(self, outputs: list[str], feeds: Any, options: ort.RunOptions) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
        """Run on arrays."""
        options.add_run_config_entry(_SHRINK, _CPU_ARENA)
        return self._session.run(outputs, feeds, options)

    def run_with_ort_values(self, outputs: list[str], feeds: Any, options: ort.RunOptions) -> Any:  # noqa: ANN401 - likewise
        """Run on OrtValues."""
        options.add_run_config_entry(_SHRINK, _CPU_ARENA)
        return self._session.run_with_ort_values(outputs, feeds, options)
