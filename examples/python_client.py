"""The service from Python: classify, forecast, tensors, and streams that survive a restart of the server."""

import asyncio
import os

import numpy as np

from stablernn_client import AsyncClient, Client

URL = os.environ.get("STABLERNN_URL", "http://127.0.0.1:8080")
TOKEN = os.environ.get("STABLERNN_TOKEN")

# A digit's pixels, row by row, from 0 to 16.
PIXELS = np.array([0, 0, 5, 13, 9, 1, 0, 0, 0, 0, 13, 15, 10, 15, 5, 0, 0, 3, 15, 2, 0, 11, 8, 0] * 2, np.float32)


def ask() -> None:
    with Client(URL, TOKEN) as client:
        print("Models:", client.models())

        # Two series of different lengths; None and NaN are missing values.
        for answer in client.classify("digits", [PIXELS, [0, None, 12, 13, 5]], top_k=2):
            print(answer.label, answer.probabilities)

        [forecast] = client.forecast("co2", [369.1, None, 369.4, 369.6], start="2024-01-06", frequency="W", horizon=3)
        print(f"From {forecast.start}:", forecast.mean[:, 0])

        # Raw arrays both ways, by the Open Inference Protocol v2.
        answer = client.infer("digits", {"x": PIXELS.reshape(1, -1, 1)}, outputs=["probabilities"])
        print("probabilities", answer["probabilities"].shape)


def stream() -> None:
    with Client(URL, TOKEN) as client:
        with client.stream("digits") as stream:
            # A model of patches has results when one is full.
            samples = PIXELS.reshape(-1, *stream.about.sample_shape)
            half = len(samples) // 2
            for result in stream.steps(samples[:half]):
                print(f"step {result.step}: {result.label}")
            token = stream.token()

        # The state goes on anywhere: in another process, on another server with the same key.
        with client.stream("digits", token=token) as stream:
            for result in stream.steps(iter(samples[half:])):
                print(f"step {result.step}: {result.label}")


async def many_streams() -> None:
    async with AsyncClient(URL, TOKEN) as client, client.streams("digits", 100) as streams:
        samples = PIXELS.reshape(-1, *streams.about.sample_shape)
        result = await streams.step(np.stack([samples] * 100))
        print(f"{len(result.steps)} streams, {result.steps.sum()} steps")


if __name__ == "__main__":
    ask()
    stream()
    asyncio.run(many_streams())
