"""Every exception that crosses a module's edge.

    TrituneError                 one clear sentence with the next step; exit code 1
     |- InputError               a wrong argument, value or file; exit code 2
     |   |- UnknownModelError    no such model in the repository or on the server
     |   |- OnnxError            a file that is not a usable ONNX model
     |   `- ConfigError          a config.pbtxt that Triton would refuse
     |- DatasetError             no source of the MNIST images could be read
     |- ServerError              a Triton could not be set up, started, found or stopped
     |   |- ServerDownError      nothing answers at the address
     |   `- TritonRefusedError   Triton answered with an error (carries status and reason)
     |- LoadTestError            the generator could not run or ended early
     `- StoreError               the database or the results folder could not be used

Belongs here: exception types and nothing else. Third-party exceptions are turned into these at the
edge of the module that calls the third party.
"""

from __future__ import annotations


class TrituneError(Exception):
    """A failure told in one sentence that says what was attempted and what to do next."""

    exit_code = 1


class InputError(TrituneError):
    """A wrong argument, value or file; the sentence names the value and the limit."""

    exit_code = 2


class UnknownModelError(InputError):
    """No such model in the repository or on the server."""


class OnnxError(InputError):
    """A file that is not a usable ONNX model."""


class ConfigError(InputError):
    """A config.pbtxt that Triton would refuse."""


class DatasetError(TrituneError):
    """No source of the MNIST images could be read."""


class ServerError(TrituneError):
    """A Triton could not be set up, started, found or stopped."""


class ServerDownError(ServerError):
    """Nothing answers at the server's address."""


class TritonRefusedError(ServerError):
    """Triton answered a request with an error.

    `status` is the HTTP status (or 0 where there is none); `reason` is Triton's own words.
    """

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason or message


class LoadTestError(TrituneError):
    """The load generator could not run or ended early."""


class StoreError(TrituneError):
    """The database or the results folder could not be used."""
