//! The floor: hyper on one thread that runs the model between reading a request and answering it.
//!
//! It has no queue and no limits, and checks no more than a right answer needs. It speaks the part of the Open
//! Inference Protocol that the benchmark sends: one float tensor in binary, and the probe of readiness.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

use bench_peers::{Failure, MODEL, load, read_port};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, server::conn::http1};
use hyper_util::rt::TokioIo;
use ort::session::Session;
use ort::value::TensorRef;
use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{LocalSet, spawn_local};

const HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");
const READY: &str = "/v2/health/ready";
const INFER: &str = "/v2/models/m/infer";

/// The document before the binary tensors.
#[derive(Deserialize)]
struct Document<'a> {
    #[serde(borrow)]
    inputs: [Input<'a>; 1],
}

#[derive(Deserialize)]
struct Input<'a> {
    name: &'a str,
    shape: Vec<usize>,
    datatype: &'a str,
}

/// What all connections share.
struct Floor {
    session: RefCell<Session>,
    spare: RefCell<Vec<Vec<f32>>>, // of answered requests: new memory costs the kernel time
}

/// A request's body: its document, and its tensor in memory that is aligned as floats are.
struct Body {
    document: Vec<u8>,
    values: Vec<f32>,
}

impl Body {
    async fn read(request: Request<Incoming>, mut values: Vec<f32>) -> Result<Self, Failure> {
        let document_length = read_length(&request, HEADER_LENGTH)?;
        let length = read_length(&request, CONTENT_LENGTH)?
            .checked_sub(document_length)
            .ok_or("the document is longer than the body")?;
        let mut document = Vec::with_capacity(document_length);
        values.resize(length / size_of::<f32>(), 0.0);
        let mut rest: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        let mut body = request.into_body();
        while let Some(frame) = body.frame().await {
            let Ok(mut data) = frame?.into_data() else {
                continue; // trailers
            };
            let missing = document_length - document.len();
            document.extend_from_slice(&data.split_to(missing.min(data.len())));
            let (now, later) = rest
                .split_at_mut_checked(data.len())
                .ok_or("the tensor is no whole number of floats")?;
            now.copy_from_slice(&data);
            rest = later;
        }
        Ok(Self { document, values })
    }
}

fn read_length(request: &Request<Incoming>, name: HeaderName) -> Result<usize, Failure> {
    let value = request.headers().get(&name);
    let value = value.ok_or_else(|| format!("{name} is missing"))?;
    Ok(value.to_str()?.parse()?)
}

async fn infer(
    floor: &Floor,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Failure> {
    let spare = floor.spare.borrow_mut().pop().unwrap_or_default();
    let body = Body::read(request, spare).await?;
    let Document { inputs: [input] } = serde_json::from_slice(&body.document)?;
    if input.datatype != "FP32" {
        return Err(format!("{} is no datatype that is served", input.datatype).into());
    }
    // it fails unless the shape has as many elements
    let tensor = TensorRef::from_array_view((&input.shape[..], &body.values[..]))?;
    let mut session = floor.session.borrow_mut();
    let name = session.outputs()[0].name().to_owned();
    let outputs = session.run(ort::inputs![input.name => tensor])?;
    let (shape, values) = outputs[0].try_extract_tensor::<f32>()?;
    let raw: &[u8] = bytemuck::cast_slice(values);
    let shape: &[i64] = shape;
    let document = format!(
        r#"{{"model_name":"{MODEL}","outputs":[{{"name":"{name}","datatype":"FP32","shape":{shape:?},"parameters":{{"binary_data_size":{}}}}}]}}"#,
        raw.len()
    );
    let mut answer = Vec::with_capacity(document.len() + raw.len());
    answer.extend_from_slice(document.as_bytes());
    answer.extend_from_slice(raw);
    drop(outputs);
    floor.spare.borrow_mut().push(body.values);
    Ok(Response::builder()
        .header(CONTENT_TYPE, "application/octet-stream")
        .header(HEADER_LENGTH, document.len())
        .body(Full::from(answer))?)
}

async fn answer(
    floor: &Floor,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::POST, INFER) => match infer(floor, request).await {
            Ok(response) => return Ok(response),
            Err(error) => (StatusCode::BAD_REQUEST, error.to_string()),
        },
        (&Method::GET, READY) => (StatusCode::OK, String::new()),
        (_, path) => (StatusCode::NOT_FOUND, path.to_owned()),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    Ok(response)
}

async fn serve(stream: TcpStream, floor: Rc<Floor>) {
    let service = service_fn(|request| answer(&floor, request));
    // a client that leaves is no failure
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn accept(session: Session) -> Result<(), Failure> {
    let floor = Rc::new(Floor {
        session: RefCell::new(session),
        spare: RefCell::default(),
    });
    let listener = TcpListener::bind(("127.0.0.1", read_port("BENCH_HTTP_PORT")?)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        spawn_local(serve(stream, floor.clone()));
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    LocalSet::new().run_until(accept(load()?)).await
}
