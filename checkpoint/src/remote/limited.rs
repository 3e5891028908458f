//! Limits on the size of answers, so that they fit into memory: a store, or whoever may write to
//! it, can send any number of bytes.

use bytes::Bytes;
use futures_util::TryStreamExt;
use http_body_util::{BodyExt, Limited};
use object_store::client::{HttpError, HttpErrorKind, HttpResponseBody};
use object_store::{Error, GetResult, Result};

/// Largest answer that is not the content of an object: a page of a listing has a thousand keys of
/// at most a kilobyte each.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Error of an object that is larger than any of its kind.
#[derive(Debug, thiserror::Error)]
#[error(
    "expected at most {bytes_max} bytes, found {found_bytes}{}",
    if *.is_cut { " or more" } else { "" }
)]
pub(super) struct TooLarge {
    bytes_max: u64,
    found_bytes: u64,
    /// Set if the rest was not received.
    is_cut: bool,
}

impl From<TooLarge> for Error {
    fn from(error: TooLarge) -> Self {
        Self::Generic { store: "body", source: error.into() }
    }
}

/// Receives an object or range of at most `bytes_max`. A larger one is refused by its stated size;
/// one that exceeds its stated size is cut off.
pub(super) async fn collect(found: GetResult, bytes_max: u64) -> Result<Bytes> {
    let stated = found.range.end - found.range.start;
    if stated > bytes_max {
        return Err(TooLarge { bytes_max, found_bytes: stated, is_cut: false }.into());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(stated).unwrap_or_default());
    let mut body = found.into_stream();
    while let Some(piece) = body.try_next().await? {
        bytes.extend_from_slice(&piece);
        let found_bytes = bytes.len() as u64;
        if found_bytes > bytes_max {
            return Err(TooLarge { bytes_max, found_bytes, is_cut: true }.into());
        }
    }
    Ok(bytes.into())
}

/// Cuts a body off after [`ANSWER_BYTES_MAX`]; the client collects it whole.
pub(super) fn limited(body: HttpResponseBody) -> HttpResponseBody {
    HttpResponseBody::new(Limited::new(body, ANSWER_BYTES_MAX).map_err(|error| {
        match error.downcast::<HttpError>() {
            Ok(error) => *error,
            Err(_) => {
                let found_bytes = ANSWER_BYTES_MAX as u64;
                let error = TooLarge { bytes_max: found_bytes, found_bytes, is_cut: true };
                HttpError::new(HttpErrorKind::Decode, error)
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use futures_util::{StreamExt, stream};
    use object_store::{Attributes, GetResultPayload, ObjectMeta};

    use super::super::transport::runtime;
    use super::super::{Remote, RemoteOptions};
    use super::*;

    /// Returns an object that states a size, and sends pieces of ten bytes.
    fn object(stated: u64, pieces: usize) -> GetResult {
        let piece = || Ok(Bytes::from_static(&[7; 10]));
        GetResult {
            payload: GetResultPayload::Stream(
                stream::iter((0..pieces).map(move |_| piece())).boxed(),
            ),
            meta: ObjectMeta {
                location: "run/MANIFEST.json".into(),
                last_modified: std::time::SystemTime::UNIX_EPOCH.into(),
                size: stated,
                e_tag: None,
                version: None,
            },
            range: 0..stated,
            attributes: Attributes::default(),
            extensions: Default::default(),
        }
    }

    fn collected(stated: u64, pieces: usize) -> Result<Bytes, String> {
        let bytes = runtime().unwrap().block_on(collect(object(stated, pieces), 30));
        bytes.map_err(|error| super::super::failure::to_io(error).to_string())
    }

    #[test]
    fn an_object_is_refused_by_its_stated_size_and_cut_off_behind_the_limit() {
        assert_eq!(collected(30, 3).unwrap().len(), 30);
        let stated = collected(3 << 30, usize::MAX).unwrap_err();
        assert_eq!(stated, "expected at most 30 bytes, found 3221225472");
        let endless = collected(30, usize::MAX).unwrap_err();
        assert_eq!(endless, "expected at most 30 bytes, found 40 or more");
    }

    #[test]
    fn a_listing_without_end_is_cut_off() {
        let store = TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = [
            ("AWS_ENDPOINT_URL", format!("http://{}", store.local_addr().unwrap())),
            ("AWS_SKIP_SIGNATURE", "true".to_owned()),
            ("AWS_PROXY_URL", "http://127.0.0.1:9".to_owned()),
            ("AWS_PROXY_EXCLUDES", "127.0.0.1".to_owned()),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let options = RemoteOptions { settings, ..Default::default() };
        let remote = Remote::open_with("s3://bucket/run", options).unwrap();
        let server = thread::spawn(move || {
            let (mut connection, _) = store.accept().unwrap();
            let mut request = [0; 4096];
            assert!(connection.read(&mut request).unwrap() > 0);
            connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3221225472\r\n\r\n").unwrap();
            let mut sent_bytes = 0;
            while connection.write_all(&[b' '; 64 << 10]).is_ok() {
                sent_bytes += 64 << 10;
            }
            sent_bytes
        });
        let error = remote.list("").unwrap_err();
        assert_eq!(error.source.kind(), ErrorKind::InvalidData, "{error}");
        assert!(error.to_string().contains("expected at most 16777216 bytes"), "{error}");
        drop(remote);
        assert!(server.join().unwrap() < 10 * ANSWER_BYTES_MAX, "the connection is closed");
    }
}
