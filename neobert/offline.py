"""Jobs run with hub access off: what they need was prefetched, and a compute node's network must not be waited for."""

OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")


def offline_environment() -> dict[str, str]:
    """The variables that keep huggingface_hub, datasets and transformers from asking the network."""
    return dict.fromkeys(OFFLINE_VARIABLES, "1")
