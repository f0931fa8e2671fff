"""The CUDA driver's own interface, which torch does not offer, through NVIDIA's bindings: imported here only."""

from typing import Any


class CudaError(RuntimeError):
    """A call of the CUDA driver failed; the message names it and the driver's error."""


class Cuda:
    """Calls of the driver in the primary context of a device, the one torch uses, from any thread."""

    def __init__(self, ordinal: int, driver: Any = None) -> None:
        self.driver = driver or _bindings()
        self.ordinal = ordinal
        self._of(self.driver.cuInit(0), "cuInit")
        self._device = self._of(self.driver.cuDeviceGet(ordinal), "cuDeviceGet")
        self._context = self._of(self.driver.cuDevicePrimaryCtxRetain(self._device), "cuDevicePrimaryCtxRetain")
        self.version = self._of(self.driver.cuDriverGetVersion(), "cuDriverGetVersion")  # 12080 is CUDA 12.8

    def __call__(self, name: str, *args: Any) -> Any:
        """What `name` gives besides its status: nothing, one value, or several."""
        return self._of(self._run(name, *args), name)

    def is_done(self, event: Any) -> bool:
        status, *_ = result = self._run("cuEventQuery", event)
        if status == self.driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        self._of(result, "cuEventQuery")
        return True

    def forget(self, event: Any) -> None:
        """Whatever the driver says: at the end of the process it has forgotten events before Python does."""
        self._run("cuEventDestroy", event)

    def release(self) -> None:
        self._of(self.driver.cuDevicePrimaryCtxRelease(self._device), "cuDevicePrimaryCtxRelease")

    def _run(self, name: str, *args: Any) -> Any:
        self.driver.cuCtxPushCurrent(self._context)  # if this fails, the next call fails too, and its error is checked
        try:
            return getattr(self.driver, name)(*args)
        finally:
            self.driver.cuCtxPopCurrent()

    def _of(self, result: Any, name: str) -> Any:
        status, *given = result
        if status != self.driver.CUresult.CUDA_SUCCESS:
            raise CudaError(f"{name} on CUDA device {self.ordinal}: {status.name}")
        return given[0] if len(given) == 1 else given or None


def _bindings() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise ImportError(
            "waiting for a word in a CUDA stream needs cuda-bindings: pip install cuda-bindings, of the CUDA version "
            "of torch (torch.version.cuda)"
        ) from error
    return driver
