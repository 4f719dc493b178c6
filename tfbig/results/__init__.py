"""What a run leaves: its folder, figures, GeoJSON outlines, heatmaps and the HTML report."""
