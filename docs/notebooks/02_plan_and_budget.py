# %% [markdown]
# # Reading the plan, choosing a budget
#
# You have a model and a machine. Before anything runs, you want to know whether a training step fits, how long it
# will take, and whether more memory would make it faster. A *plan* answers these questions. It is computed by
# arithmetic alone, in a second, for any image size; nothing of that size is allocated.

# %%
import tfbig  # first, so that TensorFlow starts without its log lines

import threading
import time

import keras
import matplotlib.pyplot as plt
import numpy as np
import psutil
import tensorflow as tf

from tfbig.models.resnet import resnet18

SHAPE = (1, 2048, 2048, 3)


keras.utils.set_random_seed(0)
image = keras.Input((None, None, 3), name="image")
features = resnet18(include_top=False, pooling="avg")(image)
model = keras.Model(image, keras.layers.Dense(1, activation="sigmoid")(features))


def within(host: str) -> tfbig.StreamedModel:
    """Return the model, ready to train within some host memory."""
    big = tfbig.stream(model, tfbig.Budget(host=host))
    big.compile("adam", "binary_crossentropy")
    return big


big = within("1.2GB")
plan = big.plan(SHAPE)
plan.summary()

# %% [markdown]
# ## Line by line
#
# Each line is a *sweep*: one pass over the whole image, strip by strip. A new sweep starts where a layer first
# needs a result of the whole image. Here this layer is BatchNormalization, which needs the mean and variance.
#
# - **strips x rows**: how many bands the image is cut into, and how many rows the largest band reads. **halo**:
#   how many of these rows belong to its neighbours.
# - **stored**: where the images that the sweep computes wait for the backward pass. `host` is host memory, and
#   `disk` is a scratch file. `remat` means that the images are discarded and computed again, in a line that begins
#   with `+`.
# - **factor**: how often each operation runs; 1.000 is once.
#
# ## The same, to look at
#
# A step goes forward through the sweeps, then backward. What is stored in the forward pass is read in the
# backward pass, so memory rises and falls.

# %%
COLOURS = {"forward": "C0", "replay": "C2", "both": "C4", "backward": "C1"}
NAMES = {
    "forward": "forward",
    "replay": "computed again",
    "both": "forward and backward at once",
    "backward": "backward",
}


def draw(plan: tfbig.Plan, axes: plt.Axes) -> None:
    """Draw the planned memory of each pass over the image."""
    timeline = plan.timeline
    in_host = [store for store in timeline.spans if plan.layout.where(store) == "host"]
    stored = timeline.live_bytes(in_host, plan.image_bytes) / 1e6
    strips = np.array([plan.cost_of(moment).strip_bytes for moment in timeline.moments]) / 1e6
    places = np.arange(len(stored))
    for what, colour in COLOURS.items():
        those = [moment.kind == what for moment in timeline.moments]
        if any(those):
            axes.bar(places[those], stored[those], color=colour, label=f"stored, {NAMES[what]}")
    axes.bar(places, strips, bottom=stored, color="0.8", label="strips at work")
    axes.set_xlabel("passes over the image, in order")
    axes.set_ylabel("MB")


figure, both = plt.subplots(1, 2, figsize=(11, 3.8), sharey=True, layout="constrained")
for axes, host in zip(both, ("4GB", "1.2GB"), strict=True):
    chosen = within(host).plan(SHAPE)
    draw(chosen, axes)
    axes.set_title(
        f"budget of {host}: {chosen.total_bytes / 1e9:.2f} GB, {chosen.seconds:.1f} s predicted"
    )
both[0].legend(fontsize="small")
both[1].legend(fontsize="small")
plt.show()

# %% [markdown]
# With less memory, the planner uses strips with fewer rows, and recomputes some layers instead of storing their
# output.
#
# ## Which budget?
#
# We compute the plans for many budgets, and look for the budget below which the time rises.

# %%
budgets = [4.0, 3.0, 2.0, 1.5, 1.2, 1.1]
plans = [within(f"{gigabytes}GB").plan(SHAPE) for gigabytes in budgets]

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.4), layout="constrained")
left.plot(budgets, [p.seconds for p in plans], "o-")
left.set_ylabel("predicted seconds of a step")
left.set_ylim(0)
right.plot(budgets, budgets, "k:", label="budget")
right.plot(budgets, [p.total_bytes / 1e9 for p in plans], "o-", label="planned")
right.set_ylabel("GB")
right.legend()
for axes in (left, right):
    axes.set_xlabel("budget, GB")
plt.show()

assert all(p.total_bytes <= g * 1e9 for p, g in zip(plans, budgets, strict=True))

# %% [markdown]
# If no plan fits the budget, an error is raised at once. It says which changes would make a plan possible:

# %%
try:
    within("200MB").plan(SHAPE)
except tfbig.BudgetError as error:
    print(error)
else:
    raise AssertionError("a step of ResNet-18 on 2048 x 2048 pixels in 200 MB")

# %% [markdown]
# ## Does the plan hold?
#
# We run two steps with the budget of 1.2 GB, while a thread watches the memory.

# %%
process, done, points = psutil.Process(), threading.Event(), []
pixels = tf.random.stateless_uniform(SHAPE, (0, 0))
before, began = process.memory_info().rss, time.monotonic()


def note() -> None:
    while not done.wait(0.05):
        points.append((time.monotonic() - began, process.memory_info().rss - before))


thread = threading.Thread(target=note)
thread.start()
seconds = []
for _ in range(2):
    start = time.monotonic()
    big.train_on_batch(pixels, tf.ones((1, 1)))
    seconds.append(time.monotonic() - start)
done.set()
thread.join()

times, rise = np.array(points).T
figure, axes = plt.subplots(figsize=(8, 3.4))
axes.plot(times, rise / 1e6, label="measured")
axes.axhline(plan.peak_bytes / 1e6, color="C3", linestyle=":", label="planned peak")
axes.set_xlabel("seconds")
axes.set_ylabel("MB above the idle process")
axes.legend()
plt.show()
print(f"peak {rise.max() / 1e6:.0f} MB, planned {plan.peak_bytes / 1e6:.0f} MB")
print(f"second step {seconds[1]:.1f} s, predicted {plan.seconds:.1f} s")

assert rise.max() <= plan.peak_bytes

# %% [markdown]
# The first step is slower, because TensorFlow traces its graph, which happens once for each plan. The predicted
# time is based on rates that tfbig measures once on a machine, so it is only an estimate. The memory, however, is
# a limit that a step must not exceed.
#
# ## What next
#
# - On the command line, `tfbig plan ResNet50 32768x32768`, with `--host-memory 64GB`, prints all this without
#   Python.
# - [A label for a whole slide](03_label_per_slide.md) trains within a budget.
# - The [guide](../guides/streaming.md#budgets) has all arguments of `Budget`, and of `stream`.
