//! A peer: furnace-server with a model that ONNX Runtime runs.

use std::sync::{Mutex, PoisonError};

use bench_peers::{Failure, MODEL, item_sizes, load, read_port};
use furnace::{HostTensor, IoSpec, Model, ModelError, Server, TensorModel, Values};
use ort::session::Session;
use ort::value::TensorRef;

const MOST_ITEMS: usize = 64; // of a batch, as Triton's

/// One session; furnace knows a model of one float input and output by its own names for them.
#[derive(Debug)]
struct OnnxModel {
    session: Mutex<Session>,
    input: IoSpec,
    output: IoSpec,
}

impl OnnxModel {
    fn load() -> Result<Self, Failure> {
        let session = load()?;
        let input = IoSpec::fp32("input", &item_sizes(session.inputs()[0].dtype())?);
        let output = IoSpec::fp32("output", &item_sizes(session.outputs()[0].dtype())?);
        Ok(Self {
            session: Mutex::new(session),
            input,
            output,
        })
    }

    fn run_batch(&self, input: &HostTensor) -> Result<HostTensor, ort::Error> {
        let Values::F32(values) = &input.values else {
            unreachable!("furnace checks the types of inputs")
        };
        let tensor = TensorRef::from_array_view((&input.shape[..], &values[..]))?;
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let outputs = session.run(ort::inputs![tensor])?;
        let (shape, values) = outputs[0].try_extract_tensor::<f32>()?;
        Ok(HostTensor {
            shape: shape.iter().map(|&size| size as usize).collect(),
            values: Values::F32(values.to_vec()),
        })
    }
}

impl TensorModel for OnnxModel {
    fn name(&self) -> &str {
        MODEL
    }

    fn backend(&self) -> &str {
        "cpu"
    }

    fn inputs(&self) -> Vec<IoSpec> {
        vec![self.input.clone()]
    }

    fn outputs(&self) -> Vec<IoSpec> {
        vec![self.output.clone()]
    }

    fn run(&self, inputs: Vec<HostTensor>) -> furnace::Result<Vec<HostTensor>> {
        let result = self
            .run_batch(&inputs[0])
            .map_err(|error| ModelError::InferenceFailed(error.to_string()))?;
        Ok(vec![result])
    }
}

#[tokio::main(flavor = "multi_thread")]
async fn main() -> Result<(), Failure> {
    let model = Model::custom(OnnxModel::load()?);
    let (port, grpc_port) = (read_port("BENCH_HTTP_PORT")?, read_port("BENCH_GRPC_PORT")?);
    Server::new()
        .port(port)
        .max_batch_size(MOST_ITEMS)
        .configure(|config| {
            config.grpc_port = Some(grpc_port);
            config.batching.workers = 1; // the session runs one batch at a time, on one core
        })
        .model(model)
        .serve()
        .await?;
    Ok(())
}
