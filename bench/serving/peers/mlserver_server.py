"""A peer: MLServer with a custom runtime in the server's own process."""

import asyncio
import os

from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from session import load
from typing_extensions import override


class OnnxModel(MLModel):
    """One session."""

    @override
    async def load(self) -> bool:
        self.session = load(os.environ["BENCH_MODEL"])
        self.input = self.session.get_inputs()[0].name
        self.output = self.session.get_outputs()[0].name
        return True

    @override
    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        x = NumpyCodec.decode_input(payload.inputs[0])
        (result,) = self.session.run(None, {self.input: x})
        return InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output(self.output, result)]
        )


async def main() -> None:
    """Serve until the process ends."""
    settings = Settings(
        http_port=int(os.environ["BENCH_HTTP_PORT"]),
        grpc_port=int(os.environ["BENCH_GRPC_PORT"]),
        grpc_max_message_length=64 << 20,
        parallel_workers=0,
        use_structured_logging=False,
        debug=False,
        metrics_endpoint=None,
    )
    model = ModelSettings(name="m", implementation=OnnxModel, warm_workers=False)
    await MLServer(settings).start([model])


if __name__ == "__main__":
    asyncio.run(main())
