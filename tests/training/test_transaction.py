"""Steps that are made wholly or not at all."""

from types import SimpleNamespace

import keras
import pytest

from tfbig.training.transaction import Transaction


class Step:
    """A model of one weight and one counter, and a transaction of its worker."""

    def __init__(self):
        self.weight, self.count = keras.Variable(1.0), keras.Variable(0, dtype="int64")
        self.model = SimpleNamespace(
            variables=[self.weight, self.count],
            metrics_variables=[],
            trainable_variables=[self.weight],
        )
        self.worker = SimpleNamespace(accumulated="before")
        self.transaction = Transaction(self.model, self.worker)

    def change(self):
        self.weight.assign(2.0)
        self.count.assign_add(1)
        self.worker.accumulated = "after"

    def state(self):
        return float(self.weight), int(self.count), self.worker.accumulated


@pytest.fixture
def step():
    return Step()


def test_an_error_undoes_all_but_the_update_of_the_weights(step):
    with pytest.raises(RuntimeError), step.transaction as transaction:
        transaction.begin()
        step.change()
        raise RuntimeError
    assert step.state() == (2.0, 0, "before")
    assert transaction.is_consistent


def test_an_error_before_the_beginning_changes_nothing(step):
    with step.transaction as transaction:
        transaction.begin()
        step.change()
        transaction.commit()
    with pytest.raises(RuntimeError), transaction:
        raise RuntimeError
    assert step.state() == (2.0, 1, "after")
    assert transaction.is_consistent


def test_an_error_after_the_commit_leaves_the_model_between_two_steps(step):
    with pytest.raises(RuntimeError), step.transaction as transaction:
        transaction.begin()
        step.change()
        transaction.commit()
        raise RuntimeError
    assert step.state() == (2.0, 1, "after")
    assert not transaction.is_consistent


def test_an_attempt_can_be_undone_and_made_again(step):
    with step.transaction as transaction:
        for _ in range(2):
            transaction.undo()
            transaction.begin()
            step.change()
        transaction.commit()
        assert not transaction.is_consistent
    assert step.state() == (2.0, 1, "after")
    assert transaction.is_consistent
