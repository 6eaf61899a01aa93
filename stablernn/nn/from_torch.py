"""Recurrent layers of ``torch.nn`` as layers and models of this library, with the same weights and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor, nn

from stablernn.data.step_data import Output
from stablernn.errors import ConfigError, did_you_mean
from stablernn.nn.layers import StableRNN
from stablernn.nn.models import Classifier, Forecaster, SequenceModel, SequencePredictor
from stablernn.nn.models._base import ACTIVATIONS

TorchTask = Literal["classify", "forecast", "predict-next"]
TASKS = ("classify", "forecast", "predict-next")
_DTYPES = (torch.float32, torch.float64)
_Module = TypeVar("_Module", bound=nn.Module)


@overload
def from_torch(module: nn.RNNBase, head: None = None) -> StableRNN: ...


@overload
def from_torch(
    module: nn.RNNBase,
    head: nn.Linear | nn.Sequential,
    *,
    task: TorchTask,
    horizon: int | None = None,
    target_indices: Sequence[int] = (0,),
    output: Output = "real",
    mean: Sequence[float] | None = None,
    scale: Sequence[float] | None = None,
) -> SequenceModel: ...


def from_torch(
    module: nn.RNNBase,
    head: nn.Linear | nn.Sequential | None = None,
    *,
    task: TorchTask | None = None,
    horizon: int | None = None,
    target_indices: Sequence[int] = (0,),
    output: Output = "real",
    mean: Sequence[float] | None = None,
    scale: Sequence[float] | None = None,
) -> StableRNN | SequenceModel:
    """Return a trained ``torch.nn.LSTM``, ``GRU`` or ``RNN`` as a layer, or with its head as a model.

    The weights are copied; the outputs equal those of torch up to rounding. A model can be exported with a dynamic time
    axis and a step graph (:func:`stablernn.export`), streamed, certified and served like one that was trained here.

    Torch's two bias vectors are added, since only their sum acts; the one inside the product with the reset gate of a
    GRU stays apart. ``batch_first`` of the module holds for the layer; models read ``(batch, time, features)``.

    Args:
        module: Layers of any number, with ``bias`` or without, in float32 or float64.
        head: The linear map of the last layer's output, or a ``Sequential`` of linear maps and activations that ends
            with a linear map; ``Dropout`` and ``Identity`` in it are left out. None for the layers alone.
        task: With a head, its meaning. ``classify``: logits of the classes of a whole sequence, from the last output.
            ``forecast``: the next ``horizon`` values of the channels ``target_indices``, from the last output, ordered
            ``(horizon, targets)``. ``predict-next``: an output at every step, so also a regression of the last state:
            it is the output of the last step.
        horizon: ``forecast``: steps ahead.
        target_indices: ``forecast``: the channels that are forecast.
        output: ``predict-next``: ``real`` for numbers, ``categorical`` or ``bernoulli`` for logits.
        mean: Mean of each feature that was subtracted before the module in training, ``(features,)``; default: 0.
        scale: Divisor of each feature after that, ``(features,)``; default: 1. With ``mean`` and ``scale`` the model
            takes raw values, and a forecast is in raw units of its channel.

    Returns:
        A :class:`StableRNN` without a head, else a :class:`Classifier`, :class:`Forecaster` or
        :class:`SequencePredictor`. Dtype, device and training mode are those of the module.

    Raises:
        ConfigError: If the module is no such layer, is bidirectional, has projections, weights of another dtype or
            weights that are not finite, or an argument does not fit the module, the head or the task.

    Examples:
        >>> lstm, head = nn.LSTM(3, 8, num_layers=2, batch_first=True), nn.Linear(8, 4)
        >>> model = from_torch(lstm, head, task="classify")
        >>> x = torch.zeros(5, 20, 3)
        >>> torch.allclose(model(x), head(lstm(x)[0][:, -1]), atol=1e-6)
        True
    """
    cell = _cell_key(module)
    head_modules = [] if head is None else _head_modules(head)
    _check_weights(module, head_modules)
    if not head_modules:
        _refuse_without_head(task=task, horizon=horizon, mean=mean, scale=scale)
        layer = StableRNN(
            cell,
            module.input_size,
            module.hidden_size,
            module.num_layers,
            batch_first=module.batch_first,
            dropout=_dropout(module),
        )
        return _like(module, _copied(layer, module))
    _check_sizes(head_modules, module.hidden_size)
    model = _create_model(cell, module, head_modules, task, horizon, target_indices, output, is_scaled=mean is not None)
    model = _like(module, model)
    _copied(model.rnn.first, module)
    _copy_head(model, head_modules)
    _set_scaling(model, module, mean, scale)
    return model


def _cell_key(module: object) -> str:
    """Return the key of the cell that computes a step of the module.

    Raises:
        ConfigError: If there is none.
    """
    if isinstance(module, nn.RNNCellBase):
        layer = {nn.LSTMCell: "LSTM", nn.GRUCell: "GRU"}.get(type(module), "RNN")
        raise ConfigError(
            f"from_torch takes torch.nn.LSTM, GRU or RNN, got torch.nn.{type(module).__name__}, which is a single "
            f"step; copy its weights into torch.nn.{layer} with one layer."
        )
    if not isinstance(module, nn.LSTM | nn.GRU | nn.RNN):
        raise ConfigError(
            f"from_torch takes torch.nn.LSTM, GRU or RNN, got {type(module).__name__}. Pass the recurrent module of "
            "your network, and its Linear as the head."
        )
    if module.bidirectional:
        raise ConfigError(
            f"A bidirectional {type(module).__name__} reads the sequence from its end, too, and so can neither stream "
            "nor be one recurrence, got bidirectional=True. Train one with bidirectional=False."
        )
    if getattr(module, "proj_size", 0):
        raise ConfigError(
            f"An LSTM with projections has no cell here, got proj_size={module.proj_size}. Train one with proj_size=0."
        )
    if isinstance(module, nn.LSTM):
        return "lstm"
    if isinstance(module, nn.GRU):
        return "gru"
    return "rnn" if module.nonlinearity == "tanh" else "identity_rnn"


def _head_modules(head: object) -> list[nn.Module]:
    """Return the linear maps and activations of a head, of which the last is a linear map.

    Raises:
        ConfigError: If it has another module.
    """
    modules: list[nn.Module] = []
    for layer in _flatten(head):
        if isinstance(layer, nn.Dropout | nn.Identity):
            continue
        if not isinstance(layer, nn.Linear) and _activation(layer) is None:
            names = ", ".join(activation.__name__ for activation in ACTIVATIONS.values())
            raise ConfigError(
                f"The head must be a torch.nn.Linear, or a Sequential of Linear and {names} with the options that they "
                f"have by default, got {layer}. Pass head=None for the layers alone and keep the rest of the network "
                "in torch."
            )
        modules.append(layer)
    if not modules or not isinstance(modules[-1], nn.Linear):
        last = f"'{type(modules[-1]).__name__}'" if modules else "nothing"
        raise ConfigError(
            f"The head must end with a torch.nn.Linear, whose outputs are logits or values, got {last}. Leave out what "
            "comes after it."
        )
    return modules


def _flatten(head: object) -> Iterator[Any]:
    if not isinstance(head, nn.Sequential):
        yield head
        return
    for layer in head:
        yield from _flatten(layer)


def _activation(layer: object) -> str | None:
    """Return the name of an activation; None for another module, or one with options of its own."""
    for name, activation in ACTIVATIONS.items():
        # Whether it works in place changes no value.
        if type(layer) is activation and str(layer).replace("inplace=True", "").replace(", )", ")") == str(
            activation()
        ):
            return name
    return None


def _check_sizes(head: Sequence[nn.Module], size: int) -> None:
    """Refuse a head whose linear maps do not fit the layers, or each other.

    Raises:
        ConfigError: If one does not.
    """
    source = "the last layer"
    for layer in head:
        if isinstance(layer, nn.Linear):
            if layer.in_features != size:
                raise ConfigError(
                    f"The head must take the {size} outputs of {source}, got a Linear of {layer.in_features} inputs."
                )
            size, source = layer.out_features, "the Linear before it"


def _check_weights(module: nn.RNNBase, head: Sequence[nn.Module]) -> None:
    """Refuse weights of another dtype or without a finite value.

    Raises:
        ConfigError: If it is so.
    """
    tensors = [*module.parameters(), *(tensor for layer in head for tensor in layer.parameters())]
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1 or dtypes.isdisjoint(_DTYPES):
        names = " and ".join(sorted(str(dtype) for dtype in dtypes))
        raise ConfigError(f"from_torch takes weights in float32 or float64, got {names}. Convert with .float() first.")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        raise ConfigError(
            "The weights of the module are not all finite numbers, so it computes nothing. Train it again, at a "
            "smaller learning rate."
        )


def _refuse_without_head(**options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"{name} is for a model, which needs a head, got {name}={value!r} without one.")


def _dropout(module: nn.RNNBase) -> float:
    # Torch accepts a dropout of a single layer with a warning, and never applies it.
    return float(module.dropout) if module.num_layers > 1 else 0.0


def _create_model(
    cell: str,
    module: nn.RNNBase,
    head: Sequence[nn.Module],
    task: str | None,
    horizon: int | None,
    target_indices: Sequence[int],
    output: Output,
    *,
    is_scaled: bool,
) -> SequenceModel:
    """Return a model of the task with fresh weights, of the sizes of module and head.

    Raises:
        ConfigError: If an argument does not fit.
    """
    if task not in TASKS:
        hint = "" if task is None else did_you_mean(task, TASKS)
        raise ConfigError(f"from_torch needs the task of the head, one of {', '.join(TASKS)}, got {task!r}.{hint}")
    if (horizon is None) == (task == "forecast"):
        raise ConfigError(f"horizon is for task='forecast', which needs it, got horizon={horizon} for task='{task}'.")
    shape: dict[str, Any] = {"num_layers": module.num_layers, "dropout": _dropout(module)}
    shape["head_layers"] = [
        layer.out_features if isinstance(layer, nn.Linear) else _activation(layer) for layer in head[:-1]
    ]
    assert isinstance(head[-1], nn.Linear)
    size, outputs = module.hidden_size, head[-1].out_features
    if task == "predict-next":
        return SequencePredictor(cell, module.input_size, outputs, size, output=output, **shape)
    shape["scaling"] = "standard" if is_scaled else "none"
    if task == "classify":
        if outputs < 2:
            raise ConfigError(
                "A classifier has a logit for each of 2 or more classes, got a head of 1 output. For two classes "
                "append a row of zeros to its weight and bias in front; for a number take task='predict-next'."
            )
        return Classifier(cell, module.input_size, outputs, size, **shape)
    assert horizon is not None
    if outputs != horizon * len(target_indices):
        raise ConfigError(
            f"A head for {horizon} steps of {len(target_indices)} targets has {horizon * len(target_indices)} outputs, "
            f"got {outputs}. Give the horizon and the target_indices that it was trained with."
        )
    return Forecaster(
        cell, module.input_size, horizon, size, target_indices=target_indices, quantiles=(), anchor="mean", **shape
    )


def _copied(layer: StableRNN, module: nn.RNNBase) -> StableRNN:
    """Copy the weights of a module into layers of the same sizes."""
    size = module.hidden_size
    with torch.no_grad():
        for depth, cell in enumerate(layer.cells):
            weight_ih, weight_hh = (getattr(module, f"weight_{end}_l{depth}") for end in ("ih", "hh"))
            zeros = weight_ih.new_zeros(len(weight_ih))
            bias_ih, bias_hh = (getattr(module, f"bias_{end}_l{depth}", zeros) for end in ("ih", "hh"))
            weights: dict[str, Tensor] = {"weight_ih": weight_ih, "weight_hh": weight_hh}
            if isinstance(module, nn.GRU):
                weights["bias_ih"] = torch.cat([(bias_ih + bias_hh)[: 2 * size], bias_ih[2 * size :]])
                weights["bias_hn"] = bias_hh[2 * size :]
            else:
                # The catalog's relu RNN calls its only bias so.
                name = "bias" if cell.key == "identity_rnn" else "bias_ih"
                weights[name] = bias_ih + bias_hh
            cell.to(weight_ih.dtype).load_state_dict(weights)
    return layer


def _copy_head(model: SequenceModel, head: Sequence[nn.Module]) -> None:
    # A single member, so that the last linear map is the only one of its head.
    targets = [layer for part in (model.head_layers, model.head) for layer in part.modules()]
    maps = [layer for layer in targets if isinstance(layer, nn.Linear)]
    sources = [layer for layer in head if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for linear, source in zip(maps, sources, strict=True):
            linear.weight.copy_(source.weight)
            linear.bias.copy_(torch.zeros_like(linear.bias) if source.bias is None else source.bias)


def _set_scaling(
    model: SequenceModel, module: nn.RNNBase, mean: Sequence[float] | None, scale: Sequence[float] | None
) -> None:
    """Let the model scale raw values as they were scaled in front of the module.

    Raises:
        ConfigError: If only one of mean and scale is given, they have another length, or a scale is not positive.
    """
    if (mean is None) != (scale is None):
        raise ConfigError("mean and scale go together, got only one of them. Give mean=0 or scale=1 of each feature.")
    if mean is not None and scale is not None:
        for name, values in (("mean", mean), ("scale", scale)):
            if len(values) != module.input_size:
                raise ConfigError(
                    f"{name} has a number for each of the {module.input_size} features of the module, got "
                    f"{len(values)}."
                )
        means, scales = (torch.as_tensor(values, dtype=torch.float64) for values in (mean, scale))
        if not (bool(torch.isfinite(means).all()) and bool(torch.isfinite(scales).all()) and bool((scales > 0).all())):
            raise ConfigError(f"mean must be finite and scale greater than 0, got {list(mean)} and {list(scale)}.")
        model.scaling.mean.copy_(means)
        model.scaling.scale.copy_(scales)
    # The module was trained on the values as they are scaled now.
    model.mark_fitted()


def _like(module: nn.RNNBase, model: _Module) -> _Module:
    """Return the model in the dtype, on the device and in the mode of the module."""
    weight = next(module.parameters())
    return model.to(weight.device, weight.dtype).train(module.training)
