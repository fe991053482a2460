"""How a step fails."""

from journeyman.types import JourneymanError


class NonFiniteError(JourneymanError):
    """NaN or infinity in a step. The step was not applied; the message names the first bad tensor
    and where the state was dumped."""
