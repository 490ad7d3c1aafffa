"""The slash commands of the prompt line: what each does, in the words of `OpenSession`."""

from callboard.faces.commands.here import Command, Here, Leave, Switch
from callboard.faces.commands.listed import COMMANDS, perform

__all__ = ["COMMANDS", "Command", "Here", "Leave", "Switch", "perform"]
