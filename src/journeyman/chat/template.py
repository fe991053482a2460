"""Read a checkpoint's own chat template, to check its family and learn its default system text."""

import json
from pathlib import Path

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from journeyman.types import UserError

START = "<|im_start|>"
END = "<|im_end|>"

_PROBE = (
    {"role": "system", "content": "probe system"},
    {"role": "user", "content": "probe question"},
    {"role": "assistant", "content": "probe answer"},
    {"role": "user", "content": "probe again"},
)


def default_system(model_dir: Path) -> str | None:
    """The system text that the checkpoint's template adds by itself when a conversation has none.

    Raises UserError when the template is missing, broken, or not of the ChatML family.
    """
    source = _template_source(model_dir)
    if _render(source, _PROBE, model_dir) != _chatml(_PROBE):
        raise UserError(
            f"the chat template in {model_dir} is not ChatML",
            "use a checkpoint of the ChatML family (SmolLM2, Qwen2), or add its family to "
            "journeyman.chat",
        )
    question = _PROBE[1:2]
    rendered = _render(source, question, model_dir)
    added = rendered.removesuffix(_chatml(question))
    if not added:
        return None
    return added.removeprefix(f"{START}system\n").removesuffix(f"{END}\n")


def _chatml(messages: tuple[dict[str, str], ...]) -> str:
    blocks = "".join(f"{START}{m['role']}\n{m['content']}{END}\n" for m in messages)
    return f"{blocks}{START}assistant\n"


def _render(source: str, messages: tuple[dict[str, str], ...], model_dir: Path) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    try:
        return environment.from_string(source).render(
            messages=list(messages), add_generation_prompt=True, bos_token="", eos_token=END
        )
    except TemplateError as error:
        raise UserError(
            f"the chat template in {model_dir} does not render: {error}",
            "fetch the model again",
        ) from error


def _template_source(model_dir: Path) -> str:
    file = model_dir / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    config = model_dir / "tokenizer_config.json"
    if config.is_file():
        source = json.loads(config.read_text("utf-8")).get("chat_template")
        if isinstance(source, str):
            return source
    raise UserError(
        f"no chat template in {model_dir} (neither chat_template.jinja nor tokenizer_config.json)",
        "fetch the model again, or copy the template of the model it was trained from",
    )
