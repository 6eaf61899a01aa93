"""Settings, data sets and names that several tables share."""

from __future__ import annotations

from stablernn_papers.table import SHORT, Column, DataSet, Protocol, Setting, merge, ours, paper, released

ANTISYMMETRIC_PAPER = (
    "Chang, Chen, Haber, Chi: AntisymmetricRNN: A Dynamical System View on Recurrent Neural Networks (ICLR 2019)"
)
LIPSCHITZ_PAPER = "Erichson, Azencot, Queiruga, Hodgkinson, Mahoney: Lipschitz Recurrent Neural Networks (ICLR 2021)"
LVF_PAPER = "Azencot, Erichson, Ben-Chen, Mahoney: A Differential Geometry Perspective on Orthogonal Recurrent Models"

LOST_FIGURES = (
    "The published figures of this paper are missing in the text that was read, so that its column is empty and ours "
    "stand alone."
)

# The paper's nonlinearity could be read for the copy task alone. With modReLU the state of its explicit step has no
# bound and grows: the loss on JSB is then 18 nats a frame, against 8.7 with tanh.
LVF_SETTINGS = {**paper({"training.optimizer": "adam"}), **ours({"model.cell_options.nonlinearity": "tanh"})}

ACCURACY = (Column("accuracy", "test.accuracy", percent=True, decimals=1),)

# The published values of a single network that reads the last state; what the library adds to it is switched off.
PLAIN_CLASSIFIER: dict[str, Setting] = {
    **paper(
        {
            "model.readout": "last",
            "model.patch_size": 1,
            "model.patch_stride": 1,
            "model.patch_embedding": 0,
            "model.head_dropout": 0.0,
            "training.label_smoothing": 0.0,
            "training.time_warp": 0.0,
            "training.jitter": 0.0,
            "training.rescale": 0.0,
        }
    ),
    **ours({"training.calibrate": False}),
}

BATCHES_OF_128 = paper({"training.batch_size": 128})
BATCHES_OF_50 = released({"training.batch_size": 50})

# The learning rate drops once, after 90 of 100 epochs.
LIPSCHITZ_SCHEDULE = {
    **paper({"training.epochs": 100}),
    **released({"training.schedule": "step", "training.step_epochs": 90, "training.batch_size": 128}),
}

# Table 8 of the Lipschitz RNN paper for MNIST, whose options of the cell are those of its preset `paper`; both orders
# share all but the learning rate.
LIPSCHITZ_MNIST = merge(
    LIPSCHITZ_SCHEDULE,
    paper(
        {
            "training.lr": 0.003,
            "training.lr_decay": 0.1,
        }
    ),
)
LIPSCHITZ_PMNIST = paper({"training.lr": 0.0035})

MNIST = DataSet("mnist", "MNIST, pixel by pixel in order", paper({"data.source": "mnist", "model.scaling": "none"}))
PMNIST = DataSet(
    "pmnist",
    "MNIST, pixel by pixel in a fixed random order",
    {**paper({"data.source": "pmnist"}), **ours({"model.scaling": "none"})},
)
DIGITS = DataSet(
    "digits",
    "digits of 8 x 8 pixels, bundled with stablernn: 64 steps",
    ours({"data.source": "digits", "model.scaling": "standard"}),
)
COPY_SHORT = DataSet(
    "copy-10",
    "copy task with a delay of 10, in place of the data of the table",
    ours({"data.source": "copy", "data.length": 10}),
    columns=(
        Column("loss", "test.loss", is_published=False),
        Column("accuracy", "test.accuracy", percent=True, is_published=False),
    ),
)

SHORT_PROTOCOL = Protocol(
    SHORT,
    seeds=(0,),
    settings=ours({"training.max_steps": 4, "training.batch_size": 16, "training.plots": False}),
    most_units=32,
)
"""A few steps of little networks, which shows that everything works and compares nothing."""
