//! Conversion of errors of object stores to errors of files, in one line.

use std::error::Error as StdError;
use std::io::{self, ErrorKind};
use std::time::Duration;

use object_store::Error;
use object_store::client::{HttpError, HttpErrorKind};

use super::limited::TooLarge;
use crate::error::CONTRADICTION;
use record::text::redacted;

/// Start of the error of a body that is too short for its range.
pub(super) const SHORT_BODY: &str = "expected a body of ";

/// The client's error for all of an object in place of a range.
const NOT_PARTIAL: &str = "Received non-partial response when range requested";

/// Error of a store that does not answer.
#[derive(Debug, thiserror::Error)]
#[error("no complete answer within {} s", .0.as_secs_f64())]
pub(super) struct Stalled(pub(super) Duration);

/// Error of a request that was not sent, because of a setting.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct NotSent(pub(super) io::Error);

pub(super) fn to_io(error: Error) -> io::Error {
    let kind = kind(&error);
    io::Error::new(kind, describe(&error))
}

pub(super) fn is_absent(error: &Error) -> bool {
    matches!(error, Error::NotFound { .. })
}

/// Returns whether an exclusive put certainly found an object: the store said that the condition
/// failed. A conflict with a concurrent request is `AlreadyExists` too, and that one may still
/// fail.
pub(super) fn is_failed_condition(error: &Error) -> bool {
    let Error::AlreadyExists { source, .. } = error else { return false };
    let cause = source.downcast_ref::<Error>();
    matches!(cause, Some(Error::Precondition { .. } | Error::NotModified { .. }))
}

/// Returns whether a conditional request lost against a concurrent one, which may still fail. The
/// code decides: with 409, Azure also says that an object exists.
pub(super) fn is_conflict(error: &Error) -> bool {
    let answer = last_cause(error);
    let code = element(&answer, "Code");
    matches!(error, Error::AlreadyExists { .. })
        && matches!(code, Some("ConditionalRequestConflict" | "OperationAborted"))
}

/// Returns whether a request certainly changed nothing.
pub(super) fn is_refused(error: &Error) -> bool {
    match error {
        Error::NotFound { .. }
        | Error::PermissionDenied { .. }
        | Error::Unauthenticated { .. }
        | Error::NotImplemented { .. }
        | Error::NotSupported { .. } => true,
        error => is_not_sent(error) || transport_kind(error) == Some(HttpErrorKind::Connect),
    }
}

fn kind(error: &Error) -> ErrorKind {
    match error {
        Error::NotFound { .. } => ErrorKind::NotFound,
        Error::AlreadyExists { .. } => ErrorKind::AlreadyExists,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            ErrorKind::PermissionDenied
        }
        Error::InvalidPath { .. } => ErrorKind::InvalidInput,
        Error::NotSupported { .. } | Error::NotImplemented { .. } => ErrorKind::Unsupported,
        error if is_not_sent(error) => ErrorKind::InvalidInput,
        error if is_too_large(error) => ErrorKind::InvalidData,
        error if is_contradiction(error) => CONTRADICTION,
        error => match transport_kind(error) {
            Some(HttpErrorKind::Timeout) => ErrorKind::TimedOut,
            Some(HttpErrorKind::Connect) => ErrorKind::NotConnected,
            _ => ErrorKind::Other,
        },
    }
}

/// Returns whether the store has answered with something else than was requested: another range, or
/// an object that has replaced the one that was opened.
fn is_contradiction(error: &Error) -> bool {
    match error {
        Error::Precondition { .. } => true,
        Error::Generic { .. } => {
            let text = last_cause(error); // the client's type for it is private
            let starts = ["Requested ", SHORT_BODY];
            let is_other = text.contains("Content-Range") || text == NOT_PARTIAL;
            is_other || starts.iter().any(|start| text.starts_with(start))
        }
        _ => false,
    }
}

pub(super) fn is_too_large(error: &Error) -> bool {
    causes(error).any(|cause| cause.is::<TooLarge>())
}

fn is_not_sent(error: &Error) -> bool {
    causes(error).any(|cause| cause.is::<NotSent>())
}

fn transport_kind(error: &Error) -> Option<HttpErrorKind> {
    causes(error).find_map(|cause| cause.downcast_ref::<HttpError>()).map(HttpError::kind)
}

/// Describes an error by its last cause; those before repeat it in longer and longer sentences.
fn describe(error: &Error) -> String {
    let last = last_cause(error);
    match (element(&last, "Code"), element(&last, "Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code.to_owned(),
        _ if matches!(error, Error::NotFound { .. }) => "no such object or bucket".to_owned(),
        _ => redacted(&last.split_whitespace().collect::<Vec<_>>().join(" ")),
    }
}

/// Innermost cause of an error.
pub(super) fn last_cause(error: &(dyn StdError + 'static)) -> String {
    causes(error).last().map(ToString::to_string).unwrap_or_default()
}

fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&cause| cause.source())
}

/// The text of an element of a store's answer, which is XML.
fn element<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let (_, from) = answer.split_once(&format!("<{name}>"))?;
    let (text, _) = from.split_once(&format!("</{name}>"))?;
    Some(text.trim()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stores_answer_becomes_its_code_and_message() {
        let answer = "Server returned non-2xx status code: 403 Forbidden: <?xml?><Error>\
                      <Code>AccessDenied</Code><Message>no</Message></Error>";
        let source = io::Error::other(answer).into();
        let error = Error::PermissionDenied { path: "x".to_owned(), source };
        let error = to_io(error);
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert_eq!(error.to_string(), "AccessDenied: no");
    }
}
