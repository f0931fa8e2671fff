"""The CUDA driver's own interface, which torch does not offer, through NVIDIA's bindings: imported here only."""

from typing import Any

from fscomm.device import CAPTURED

TOO_OLD = (
    "a driver of CUDA {driver} has not all functions that cuda-bindings {bindings} calls, copies in batches among "
    "them: pip install 'cuda-bindings<{bindings}', or install a driver of CUDA {bindings}"
)


class CudaError(RuntimeError):
    """A call of the CUDA driver failed; the message names it and the driver's error."""


class Cuda:
    """Calls of the driver in the primary context of a device, the one torch uses, from any thread.

    Raises:
        CudaError: there is no such device, or the driver is older than what the bindings call.
    """

    def __init__(self, ordinal: int, driver: Any = None) -> None:
        self.driver = driver or _bindings()
        self.ordinal = ordinal
        self._of(self.driver.cuInit(0), "cuInit")
        self.version = self._of(self.driver.cuDriverGetVersion(), "cuDriverGetVersion")  # 12080 is CUDA 12.8
        if self.version // 1000 < self.driver.CUDA_VERSION // 1000:
            raise CudaError(TOO_OLD.format(driver=dotted(self.version), bindings=self.driver.CUDA_VERSION // 1000))
        self._device = self._of(self.driver.cuDeviceGet(ordinal), "cuDeviceGet")
        self._context = self._of(self.driver.cuDevicePrimaryCtxRetain(self._device), "cuDevicePrimaryCtxRetain")

    def __call__(self, name: str, *args: Any) -> Any:
        """What `name` gives besides its status: nothing, one value, or several."""
        return self._of(self._run(name, *args), name)

    def is_done(self, event: Any) -> bool:
        status, *_ = result = self._run("cuEventQuery", event)
        if status == self.driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        self._of(result, "cuEventQuery")
        return True

    def refuse_capture(self, stream: Any) -> None:
        """Raise CudaError while work that is issued to `stream` goes into a graph instead."""
        none = self.driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
        if self("cuStreamIsCapturing", stream) != none:
            raise CudaError(CAPTURED)

    def forget(self, event: Any) -> None:
        """Whatever the driver says: at the end of the process it has forgotten events before Python does."""
        self._run("cuEventDestroy", event)

    def release(self) -> None:
        self._of(self.driver.cuDevicePrimaryCtxRelease(self._device), "cuDevicePrimaryCtxRelease")

    def _run(self, name: str, *args: Any) -> Any:
        self.driver.cuCtxPushCurrent(self._context)  # if this fails, the next call fails too, and its error is checked
        try:
            return getattr(self.driver, name)(*args)
        except RuntimeError as error:  # of the bindings, for a function that they did not find
            raise CudaError(f"{name} on CUDA device {self.ordinal}: {error}") from error
        finally:
            self.driver.cuCtxPopCurrent()

    def _of(self, result: Any, name: str) -> Any:
        status, *given = result
        if status != self.driver.CUresult.CUDA_SUCCESS:
            why = f". {CAPTURED}" if "CAPTURE" in status.name else ""
            raise CudaError(f"{name} on CUDA device {self.ordinal}: {status.name}{why}")
        return given[0] if len(given) == 1 else given or None


def dotted(version: int) -> str:
    """12080 as 12.8."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _bindings() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise ImportError(
            "waiting for a word in a CUDA stream needs cuda-bindings: pip install cuda-bindings, of the CUDA version "
            "of torch (torch.version.cuda)"
        ) from error
    return driver
