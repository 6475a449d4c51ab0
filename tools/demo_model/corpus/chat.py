"""How a document or a conversation becomes training text."""

from __future__ import annotations

from dataclasses import dataclass, field

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
TEXT_END = "<|endoftext|>"


@dataclass(frozen=True)
class Document:
    kind: str
    text: str  # without the final TEXT_END


@dataclass(frozen=True)
class Session:
    """A conversation. Each turn is what the user says and the one right answer."""

    kind: str
    turns: list[tuple[str, str]]
    system: str = ""
    # Whether every answer follows from the conversation, so that it can be scored exactly.
    exact: bool = field(default=True)

    def messages(self, num_turns: int) -> list[dict[str, str]]:
        """The first `num_turns` turns, without the last answer."""
        out = [{"role": "system", "content": self.system}] if self.system else []
        for question, answer in self.turns[:num_turns]:
            out.append({"role": "user", "content": question})
            out.append({"role": "assistant", "content": answer})
        return out[:-1]

    def chat_text(self) -> str:
        parts = [f"{IM_START}system\n{self.system}{IM_END}\n"] if self.system else []
        for question, answer in self.turns:
            parts.append(f"{IM_START}user\n{question}{IM_END}\n")
            parts.append(f"{IM_START}assistant\n{answer}{IM_END}\n")
        return "".join(parts)

    def plain_text(self, style: int) -> str:
        ask, reply = (("Question: ", "Answer: "), ("Q: ", "A: "), ("User: ", "Assistant: "))[style]
        return "\n\n".join(f"{ask}{question}\n{reply}{answer}" for question, answer in self.turns)
