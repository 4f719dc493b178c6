"""Results of a run: run folder, figures, GeoJSON outlines, heatmaps and the HTML report."""
