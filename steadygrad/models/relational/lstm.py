"""An LSTM over objects, as Webb et al. (2021) compare with."""

from steadygrad.layers import LSTM
from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.normalisation import Segments
from steadygrad.models.relational.recurrent import Recurrent


class RelationalLSTM(Recurrent):
    """y = C h_T + c,  h = LSTM(z) of 512 units."""

    def __init__(
        self,
        objects: int,
        image_size: int,
        channels: int,
        answers: int,
        segments: Segments,
        *,
        hidden_size: int = 512,
        encoder: str = "learned",
        normalisation: str = "context",
        l1: float = 0.0,
    ) -> None:
        super().__init__(
            LSTM(FEATURES, hidden_size),
            objects,
            image_size,
            channels,
            answers,
            segments,
            encoder=encoder,
            normalisation=normalisation,
            l1=l1,
        )
