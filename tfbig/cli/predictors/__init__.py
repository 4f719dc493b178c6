"""What a trained network says of slides, one module a kind of network.

Each is made from the settings of `tfbig predict`, the model and the settings of its run, sets what was not given,
and has `predict(path, slide)`, which writes the results and gives a line for people, and `finished(path)`.
"""

from tfbig import PatchGD, SourceError
from tfbig.cli.predictors.bags import Bags
from tfbig.cli.predictors.images import Images
from tfbig.cli.predictors.masks import Masks
from tfbig.cli.predictors.results import run_of


def make(settings):
    """The one for `settings.model`.

    Raises:
        SourceError: it is no model, or takes something else than images or bags of tiles.
    """
    plain, config = run_of(settings.model, settings.custom)
    if isinstance(plain, PatchGD):
        return Images(settings, plain, config)
    (image, *_), (output, *_) = plain.inputs, plain.outputs
    kinds = {(4, 4): Masks, (4, 2): Images, (5, 2): Bags}
    kind = kinds.get((len(image.shape), len(output.shape)))
    if kind is None:
        raise SourceError(
            f"{settings.model}: takes {image.shape} to {output.shape}; expected images [N, H, W, C] to masks "
            "[N, H, W, K] or to classes [N, K], or bags of tiles [N, n, H, W, C] to classes."
        )
    return kind(settings, plain, config)
