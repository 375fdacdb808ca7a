"""A chat template's frame: what an instruct model reads before and after what a user says."""

import hashlib
from dataclasses import dataclass
from typing import Self

from transformers import PreTrainedTokenizerBase

from icrbench.util.errors import UserError, said

_MESSAGE = "the-user-says-this"


@dataclass(frozen=True)
class ChatFrame:
    """One turn of a user, opened and closed, and the opening of the model's answer.

    Attributes:
        before: text up to the user's words, a system prompt among it if the template brings one.
        after: text from there to where the answer starts.
    """

    before: str
    after: str

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, model: str) -> Self:
        """Return the frame of a tokenizer's own template.

        Raises:
            UserError: if it has none, or one that does not keep the user's words as they are.
        """
        if not tokenizer.chat_template:
            raise UserError(f"model '{model}' has no chat template: run it without --chat-template.")
        try:
            turns = [{"role": "user", "content": _MESSAGE}]
            text = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # whatever a template raises
            raise UserError(f"the chat template of model '{model}' cannot be used ({said(error)}).") from error
        before, found, after = text.partition(_MESSAGE)
        if not found or _MESSAGE in after:
            raise UserError(f"the chat template of model '{model}' does not keep a user's words as they are.")
        return cls(before, after)

    @property
    def sha256(self) -> str:
        """Hash of both texts, first 16 hex digits."""
        return hashlib.sha256(f"{self.before}\0{self.after}".encode()).hexdigest()[:16]
