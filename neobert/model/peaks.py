"""What data sheets say that GPUs compute at most. Torch-free."""

import re

PEAK_FLOPS_PER_SECOND = {"A100": 312e12, "B200": 2250e12, "H100": 989e12, "H200": 989e12, "L40S": 362e12}
"""Dense bf16 of NVIDIA's data sheets (SXM modules where there are several)."""

OTHER_FORMS = {"PCIe", "NVL", "MIG"}
"""Words in a device's name that say that it is slower than the module in the table."""


def datasheet_peak(device_name: str) -> float | None:
    """Dense bf16 operations a second of a GPU as the driver names it; None where the table does not have it."""
    words = set(re.split(r"[\s-]+", device_name))
    if words & OTHER_FORMS:
        return None
    return next((peak for name, peak in PEAK_FLOPS_PER_SECOND.items() if name in words), None)
