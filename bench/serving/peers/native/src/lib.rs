//! What both native peers have in common: a session with one thread, on the ONNX Runtime of the Python peers.

use std::env::{self, VarError};
use std::error::Error;

use ort::session::Session;
use ort::value::ValueType;

/// What a peer returns when it cannot serve.
pub type Failure = Box<dyn Error + Send + Sync>;

/// The name that clients use in paths and messages.
pub const MODEL: &str = "m";

/// Creates the session of the model that the benchmark names.
pub fn load() -> Result<Session, Failure> {
    let environment = ort::init_from(env::var("BENCH_ONNXRUNTIME")?)?.build()?;
    let mut builder = Session::builder(&environment)?
        .with_intra_threads(1)
        .map_err(ort::Error::<()>::from)?;
    Ok(builder.commit_from_file(env::var("BENCH_MODEL")?)?)
}

/// Reads the port of a transport.
pub fn read_port(variable: &str) -> Result<u16, Failure> {
    Ok(env::var(variable)
        .map_err(|error: VarError| format!("{variable}: {error}"))?
        .parse()?)
}

/// Returns the sizes of an input or output without its batch.
pub fn item_sizes(value: &ValueType) -> Result<Vec<usize>, Failure> {
    let ValueType::Tensor { shape, .. } = value else {
        return Err("only models of tensors are served".into());
    };
    let sizes = shape[1..].iter().map(|&size| usize::try_from(size));
    Ok(sizes.collect::<Result<_, _>>()?)
}
