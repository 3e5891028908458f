//! Faults of the S3 server, as its clients see them: one at a time, for a number of requests.

use std::collections::BTreeSet;
use std::path::Path;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming};
use hyper::{Method, Request, Response, header};
use s3s::Body;
use s3s::access::S3Access;
use s3s::dto::ListObjectsV2Input;
use s3s::{S3Request, S3Result};

/// Error that ends a connection without an answer.
pub(crate) type Failure = std::io::Error;

/// Requests that a fault happens to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Every request.
    Any,
    /// Every PUT.
    AnyPut,
    /// PUT of a whole object.
    Put,
    /// PUT of an object that must not exist.
    PutNew,
    /// POST that begins an upload in parts.
    CreateUpload,
    /// PUT of a part.
    PutPart,
    /// POST that makes an object of the parts.
    CompleteUpload,
    /// DELETE of an upload in parts.
    AbortUpload,
    /// GET of an object, whole or in part.
    Get,
    /// GET of a range.
    GetRange,
    /// HEAD of an object that does not exist.
    Absent,
    /// GET of a listing.
    List,
    /// DELETE of an object, or of several.
    Delete,
}

/// Effect on a request.
#[derive(Debug, Clone)]
pub enum Kind {
    /// An error instead of the request.
    Answer {
        /// Status of HTTP.
        status: u16,
        /// Code of S3.
        code: &'static str,
    },
    /// An error of this code with status 200.
    ErrorInside {
        /// Code of S3.
        code: &'static str,
    },
    /// The connection is closed before the request is applied.
    Disconnect,
    /// The request is applied, and the connection closed.
    LoseAnswer,
    /// Variant of [`Kind::Disconnect`] after a while in which nothing happens.
    Silence(Duration),
    /// Body that ends with the connection, in its middle.
    CutBody,
    /// Half of a body, with a length that matches it.
    ShortBody,
    /// The bytes of another range.
    OtherBytes,
    /// `Content-Range` that was not requested.
    OtherRange,
    /// The whole object with status 200.
    WholeObject,
    /// ETag that no other answer has.
    OtherEtag,
    /// One key in each page of a listing.
    PagesOfOneKey,
    /// A listing without what was created after the fault began.
    StaleList,
}

/// A fault of a server.
#[derive(Debug, Clone)]
pub struct Fault {
    /// Requests that it happens to.
    pub operation: Operation,
    /// What happens to them.
    pub kind: Kind,
    /// End of the keys that it is limited to.
    pub suffix: &'static str,
    /// Requests after which it is over.
    pub times: usize,
}

impl Fault {
    /// Happens to all requests of a kind.
    pub fn always(operation: Operation, kind: Kind) -> Self {
        Self { operation, kind, suffix: "", times: usize::MAX }
    }

    fn is_of(&self, request: &Request<Incoming>, object: &Path) -> bool {
        let found = operation(request);
        let is_operation = match self.operation {
            Operation::Any => true,
            Operation::AnyPut => *request.method() == Method::PUT,
            Operation::Absent => *request.method() == Method::HEAD && !object.exists(),
            Operation::Get => matches!(found, Some(Operation::Get | Operation::GetRange)),
            wanted => found == Some(wanted),
        };
        is_operation && request.uri().path().ends_with(self.suffix)
    }
}

fn operation(request: &Request<Incoming>) -> Option<Operation> {
    let query = request.uri().query().unwrap_or_default();
    let has = |name| request.headers().contains_key(name);
    let is_bucket = request.uri().path().trim_matches('/').split('/').count() == 1;
    Some(match *request.method() {
        Method::GET if is_bucket => Operation::List,
        Method::GET if has("range") => Operation::GetRange,
        Method::GET => Operation::Get,
        Method::PUT if query.contains("partNumber=") => Operation::PutPart,
        Method::PUT if has("if-none-match") => Operation::PutNew,
        Method::PUT => Operation::Put,
        Method::POST if query.contains("uploadId=") => Operation::CompleteUpload,
        Method::POST if query.contains("uploads") => Operation::CreateUpload,
        Method::POST => Operation::Delete,
        Method::DELETE if query.contains("uploadId=") => Operation::AbortUpload,
        Method::DELETE => Operation::Delete,
        _ => return None,
    })
}

#[derive(Debug, Default)]
struct State {
    fault: Option<Fault>,
    hits: usize,
    /// Keys when the fault began.
    keys: BTreeSet<String>,
}

/// The fault of a server, if there is one now.
#[derive(Debug, Default)]
pub(crate) struct Faults(Mutex<State>);

impl Faults {
    pub(crate) fn begin(&self, fault: Option<Fault>, bucket: &Path) {
        let mut keys = BTreeSet::new();
        collect_keys(bucket, "", &mut keys);
        *self.0.lock().unwrap() = State { fault, hits: 0, keys };
    }

    /// Requests that the fault has happened to.
    pub(crate) fn hits(&self) -> usize {
        self.0.lock().unwrap().hits
    }

    /// The fault of a request, which is counted, for the object in this file.
    pub(crate) fn hit(&self, request: &Request<Incoming>, object: &Path) -> Option<Kind> {
        let mut state = self.0.lock().unwrap();
        let State { fault: Some(fault), hits, .. } = &mut *state else { return None };
        if *hits >= fault.times || !fault.is_of(request, object) {
            return None;
        }
        *hits += 1;
        Some(fault.kind.clone())
    }

    fn has_pages_of_one_key(&self) -> bool {
        let state = self.0.lock().unwrap();
        matches!(&state.fault, Some(Fault { kind: Kind::PagesOfOneKey, .. }))
    }

    /// Removes what did not exist when the fault began from the XML of a listing.
    fn make_stale(&self, listing: &str) -> String {
        let state = self.0.lock().unwrap();
        let exists = |entry: &str| {
            let name = element(entry, "Key").or(element(entry, "Prefix")).unwrap_or_default();
            state.keys.iter().any(|key| key.starts_with(name))
        };
        let mut stale = listing.to_owned();
        for tag in ["Contents", "CommonPrefixes"] {
            let [begin, end] = [format!("<{tag}>"), format!("</{tag}>")];
            let mut pieces = stale.split(&begin);
            let mut kept = pieces.next().unwrap_or_default().to_owned();
            for piece in pieces {
                let (entry, rest) = piece.split_once(&end).unwrap();
                if exists(entry) {
                    kept += &format!("{begin}{entry}{end}");
                }
                kept += rest;
            }
            stale = kept;
        }
        stale
    }

    /// The answer in place of that to a request which is not applied; or the request.
    pub(crate) async fn instead(
        kind: &Kind,
        request: Request<Incoming>,
    ) -> Result<Result<Response<Body>, Failure>, Request<Incoming>> {
        Ok(match kind {
            Kind::Answer { status, code } => Ok(error(*status, code, request).await),
            Kind::ErrorInside { code } => Ok(error(200, code, request).await),
            Kind::Disconnect => Err(Failure::other("disconnected")),
            Kind::Silence(duration) => {
                tokio::time::sleep(*duration).await;
                Err(Failure::other("silent"))
            }
            _ => return Err(request),
        })
    }

    /// Alters the answer to a request, of which `object` is the file.
    pub(crate) async fn alter(
        &self,
        kind: &Kind,
        answer: Response<Body>,
        object: &Path,
    ) -> Result<Response<Body>, Failure> {
        let (mut head, mut body) = answer.into_parts();
        if matches!(kind, Kind::LoseAnswer) {
            return Err(Failure::other("the answer is lost"));
        }
        if !head.status.is_success() {
            return Ok(Response::from_parts(head, body));
        }
        let bytes = body.store_all_limited(usize::MAX).await.unwrap();
        let half = bytes.slice(..bytes.len() / 2);
        let body = match kind {
            Kind::CutBody => {
                head.headers.insert(header::CONTENT_LENGTH, bytes.len().into());
                return Ok(Response::from_parts(head, Body::http_body(Cut(Some(half)))));
            }
            Kind::ShortBody => half,
            Kind::OtherBytes => [&bytes[1..], &bytes[..1]].concat().into(),
            Kind::OtherRange => {
                let range = format!("bytes 0-{}/{}", bytes.len() + 6, bytes.len() + 7);
                head.headers.insert(header::CONTENT_RANGE, range.parse().unwrap());
                bytes
            }
            Kind::WholeObject => {
                head.headers.remove(header::CONTENT_RANGE);
                head.status = hyper::StatusCode::OK;
                std::fs::read(object).unwrap().into()
            }
            Kind::OtherEtag => {
                let etag = format!("\"{}\"", self.hits());
                head.headers.insert(header::ETAG, etag.parse().unwrap());
                bytes
            }
            Kind::StaleList => self.make_stale(std::str::from_utf8(&bytes).unwrap()).into(),
            _ => bytes,
        };
        head.headers.insert(header::CONTENT_LENGTH, body.len().into());
        Ok(Response::from_parts(head, body.into()))
    }
}

/// An answer with an error of S3, after all of the request has arrived.
pub(crate) async fn error(status: u16, code: &str, request: Request<Incoming>) -> Response<Body> {
    drop(Body::from(request.into_body()).store_all_limited(usize::MAX).await);
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <Error><Code>{code}</Code><Message>a fault of the test</Message></Error>"
    );
    Response::builder().status(status).body(text.into()).unwrap()
}

/// Changes requests for listings, which are signed and cannot be changed before.
pub(crate) struct Pages(pub(crate) std::sync::Arc<Faults>);

type Allowed<'a> = Pin<Box<dyn Future<Output = S3Result<()>> + Send + 'a>>;

impl S3Access for Pages {
    fn list_objects_v2<'life0, 'life1, 'async_trait>(
        &'life0 self,
        request: &'life1 mut S3Request<ListObjectsV2Input>,
    ) -> Allowed<'async_trait>
    where
        'life0: 'async_trait,
        'life1: 'async_trait,
        Self: 'async_trait,
    {
        if self.0.has_pages_of_one_key() {
            request.input.max_keys = Some(1);
        }
        Box::pin(async { Ok(()) })
    }
}

/// Body that ends with an error after these bytes.
struct Cut(Option<Bytes>);

impl HttpBody for Cut {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        Poll::Ready(Some(match self.0.take() {
            Some(bytes) => Ok(Frame::data(bytes)),
            None => Err(Failure::other("cut")),
        }))
    }
}

fn collect_keys(folder: &Path, prefix: &str, keys: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let key = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            collect_keys(&entry.path(), &format!("{key}/"), keys);
        } else {
            keys.insert(key);
        }
    }
}

/// The text of an element.
fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, from) = xml.split_once(&format!("<{name}>"))?;
    Some(from.split_once(&format!("</{name}>"))?.0)
}
