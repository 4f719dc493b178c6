"""The examples at toy size, and slow ones with the results that the README states."""

import re

import abmil_accumulation
import big_layers_in_fit
import custom_layer
import gigapixel_segmentation
import keras
import numpy as np
import patch_generator
import pytest
import slides_by_label
import tensorflow as tf
import whole_slide_classifier
from exactness import FLOAT64, assert_same, integers

import tfbig


def test_big_layers_in_fit(capsys):
    results = big_layers_in_fit.main(count=16, side=48, epochs=1, filters=(8,), large=None)
    (big, _), (plain, _) = results["big"], results["plain"]
    assert_same(np.array(big), np.array(plain), FLOAT64)
    assert f"    1   {big[0]:10.6f}   {plain[0]:11.6f}\n" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_big_layers_learn_like_plain_ones(seed, capsys):
    results = big_layers_in_fit.main(seed=seed)
    assert all(accuracy >= 0.9 for _, accuracy in results.values())
    assert np.allclose(results["big"][0], results["plain"][0], rtol=1e-6)
    used = capsys.readouterr().out.splitlines()[-1]
    _, plain, streamed = (float(word) for word in re.findall(r" (\d+) MB", used))
    assert "in a step on an image of 2048 x 2048: Big layers" in used
    assert streamed < 0.75 * plain


@pytest.mark.parametrize("rows", [1, 7, 12])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_convolution_by_strips(rows, size, stride):
    """Integers: output and gradients are those of TensorFlow, bitwise, for strips of one row, a few, and all."""
    x, kernel = integers((2, rows, 5, 3), "float64", 0), integers((size, size, 3, 2), "float64", 1)

    def both(convolution):
        with tf.GradientTape() as tape:
            sources = tf.constant(x), tf.constant(kernel)
            tape.watch(sources)
            y = convolution(*sources)
        return y, *tape.gradient(y, sources, integers(y.shape, "float64", 2))

    expected = both(lambda x, w: tf.nn.conv2d(x, w, stride, "SAME"))
    for limit in (1, 45, 10**6):
        assert_same(both(lambda x, w: custom_layer.big_conv2d(x, w, stride, limit)), expected)  # noqa: B023


def test_batch_normalization_by_strips(float64):
    x = np.random.default_rng(0).normal(2, 3, (2, 7, 5, 4))
    layer = keras.layers.BatchNormalization()
    layer.build(x.shape)
    layer.set_weights([np.random.default_rng(1).uniform(1, 2, 4) for _ in range(4)])
    gamma, beta = (w.value for w in layer.trainable_weights)

    def both(norm):
        with tf.GradientTape() as tape:
            sources = tf.constant(x), gamma, beta
            tape.watch(sources[0])
            y = norm(sources[0])
        return y, *tape.gradient(y, sources, np.random.default_rng(2).normal(size=y.shape))

    expected = both(lambda x: layer(x, training=True))
    for limit in (1, 45, 10**6):
        actual = both(lambda x: custom_layer.big_batch_norm(x, gamma, beta, 1e-3, limit)[0])  # noqa: B023
        assert_same(actual, expected, FLOAT64)


def test_custom_layer(float64, capsys):
    assert custom_layer.main(side=12, epochs=2, max_elements=150) < 1e-10
    assert "largest difference of a weight" in capsys.readouterr().out


def test_abmil_accumulation(float64, capsys):
    assert max(abmil_accumulation.main()) < 1e-10
    assert "tfbig.mil.MIL  largest relative difference" in capsys.readouterr().out


@pytest.mark.slow
def test_gigapixel_segmentation(tmp_path, capsys):
    size = {"size": (512, 1024), "mosaic": (1024, 2560)}
    score = gigapixel_segmentation.main(**size, steps=2, small_steps=40, out=tmp_path / "out")
    out = capsys.readouterr().out
    assert 0 <= score <= 1 and out.strip().endswith(f"Dice on the unseen part {score:.3f}")
    assert "joining 3 slides to " in out and "Plan for an image of 1 x 512 x 1024 x 1" in out
    assert "\n2 steps on crops of 512 x 1024: loss " in out and "memory of the process" in out
    assert (tmp_path / "out" / "overlay.png").read_bytes().startswith(b"\x89PNG")
    slide = tmp_path / "out" / "mosaic_1024x2560.tif"
    with pytest.raises(tfbig.SourceError, match="is read by this command"):
        gigapixel_segmentation.main(slide, out=tmp_path / "out")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "overlay.png").write_bytes(b"mine")
    with pytest.raises(tfbig.SourceError, match=r"holds overlay\.png, which tfbig did not write"):
        gigapixel_segmentation.main(slide, out=tmp_path / "new")
    assert (tmp_path / "new" / "overlay.png").read_bytes() == b"mine"
    again = gigapixel_segmentation.main(**size, steps=2, small_steps=40, out=tmp_path / "out")
    assert again == score and "joining" not in capsys.readouterr().out


def test_mosaic(tmp_path):
    """A mosaic is a slide; its tiles are those of the example slides, or bright."""
    path = tmp_path / "mosaic.tif"
    gigapixel_segmentation.write_mosaic(path, 4700, 1100)
    slide = tfbig.open_slide(path)
    assert slide.shape == (4700, 1100, 3) and slide.mpp == pytest.approx((2.02, 2.02))
    assert [p.name for p in tmp_path.iterdir()] == ["mosaic.tif"]
    tiles = list(gigapixel_segmentation.mosaic_tiles(4700, 1100))
    assert len(tiles) == 10 * 3 and {tile.shape for tile in tiles} == {(512, 512, 3)}
    first = np.concatenate(tiles[:3], axis=1)[:, :1100].astype(int)
    rows = [tfbig.open(path).read(0, 512) for path in gigapixel_segmentation.SLIDES]
    candidates = [r[:, ::step][:, :1100] for r in rows for step in (1, -1)]
    assert any((first == candidate).all() for candidate in candidates)
    read = slide.level().read(0, 512).astype(int)
    assert np.abs(read - first).mean() < 5  # JPEG


@pytest.mark.slow
def test_whole_slide_classifier(capsys):
    losses = whole_slide_classifier.main(epochs=2, host="1GB", side=96)
    assert losses[1] < losses[0]
    assert "Plan for an image of 1 x 96 x 96 x 3" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_patch_generator(share, tmp_path, capsys):
    out = tmp_path / "made.png"
    distance = patch_generator.main(steps=2, batch=4, share=share, out=out)
    assert out.read_bytes().startswith(b"\x89PNG")
    assert f"Frechet distance {distance:.4f}" in capsys.readouterr().out


def test_frechet_distance():
    """The distance of N(0, 1) and N(3, 4) by hand: 3^2 + 1 + 4 - 2 * 1 * 2."""
    x = np.random.default_rng(0).normal(size=(200_000, 1)) * [1, 1]
    x[:, 1] = np.random.default_rng(1).normal(size=200_000)
    distance = patch_generator.frechet(x, x * [2, 1] + [3, 0])
    assert abs(distance - 10) < 0.05


@pytest.mark.slow
def test_segmentation_score(tmp_path):
    """Crops of a gigapixel, in some minutes."""
    assert gigapixel_segmentation.main(out=tmp_path) >= 0.95


@pytest.mark.slow
def test_slides_by_label(tmp_path, capsys):
    rows = slides_by_label.main(tmp_path, epochs=1, tile=256, side=1024)
    assert [row["slide"] for row in rows] == [f"{name}.tif" for name in slides_by_label.SLIDES]
    assert {row["predicted"] for row in rows} <= set(slides_by_label.SLIDES.values())
    assert all((tmp_path / part / "report.html").exists() for part in ("run", "found"))
    assert "bags of" in capsys.readouterr().out
