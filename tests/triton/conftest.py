"""Makes the fixtures known to pytest. Nothing is imported from here: tests/python has a conftest too."""

from adapter_fixtures import lora_llm, lora_texts  # noqa: F401
from triton_fixtures import (  # noqa: F401
    client,
    demo_model,
    long_model,
    models,
    reference,
    server,
)
