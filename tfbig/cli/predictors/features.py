"""Predict the class, risk or value of a slide from a bag of its features, and the attention of each instance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tfbig import SourceError, sources
from tfbig.cli import slide_batch
from tfbig.cli.data import background
from tfbig.cli.input_kinds import BAGS
from tfbig.cli.predictors import results
from tfbig.cli.predictors.predictor import Predictor
from tfbig.cli.predictors.results import Config
from tfbig.cli.settings.slide_settings import PredictSettings
from tfbig.cli.tasks import evaluation, mil
from tfbig.results import run_folder
from tfbig.sources.names import title_of
from tfbig.system.output_folder import file_in


class Features(Predictor):
    """Predictor for aggregators of features, which reads bags instead of slides."""

    inputs = BAGS
    row = "bag"

    def __init__(self, settings: PredictSettings, plain: Any, config: Config) -> None:
        super().__init__(settings)
        background.refuse(background.resolved(settings), results.BY_PATCHES)
        slide_batch.refuse_resolution(
            settings, "features are those of the tiles that they were computed from."
        )
        results.check_attention(settings.model, plain)
        self.target = results.target_of(settings, plain.outputs[0].shape[-1], config)
        self.settings = replace(settings, class_names=results.names_of(self.target))
        self.width = plain.inputs[0].shape[-1]
        self.explain = mil.explainer_of_twin(plain)

    def predict(self, path: Path, slide: None) -> str:
        """Predict a bag, write the results and return a line to print."""
        bag = sources.open_bag(path)
        if len(bag.shape) != 2 or bag.shape[1] != self.width:
            raise SourceError(
                f"{path}: has shape {bag.shape}, expected features [n, {self.width}]. Use the encoder of the run."
            )
        if self.settings.dry_run:
            return f"{path.name}: {bag.shape[0]} instances of {self.width} features"
        explanation, target = self.explain(bag), self.target
        attention, scores = explanation["attention"], np.asarray(explanation["scores"])
        prediction = target.predicted(evaluation.logits_of(explanation)[None])[0]
        name, caption = title_of(path), target.caption(prediction)
        self._write_instances(name, bag, attention, scores)
        evaluation.draw_attention(self.folder, name, bag, attention, f"{name}: {caption}")
        row = {"bag": path.name, "instances": bag.shape[0], **target.columns(prediction)}
        self.write_row(row)
        return f"{path.name}: {caption}, {bag.shape[0]} instances, attention up to {attention.max():.3g}"

    def _write_instances(self, name: str, bag: Any, attention: Any, scores: Any) -> None:
        """Write the table of the instances, with their coordinates if the bag has any."""
        columns: dict[str, Any] = {"instance": np.arange(len(attention))}
        if bag.coords is not None:
            columns |= dict(zip(("x", "y"), np.asarray(bag.coords).T, strict=True))
        columns |= {"attention": attention, **self.target.tile_numbers(scores)}
        lines = zip(*(values.tolist() for values in columns.values()), strict=True)
        rows = [dict(zip(columns, line, strict=True)) for line in lines]
        run_folder.write_csv(file_in(self.folder, f"{name}_instances.csv"), rows)
