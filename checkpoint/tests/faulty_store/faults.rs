//! Faults of a store, one row each: the fault, the requests that it hits, the operation during
//! which it lasts, and what a run may notice of it. In every row the newest checkpoint that was
//! saved is restored in the end, bit for bit, and none was rejected.

use std::time::Duration;

use checkpoint::{Error, NoFailpoints};

use crate::{Attempt, PATIENCE};
use During::{Claim, Resume, Retention, Save};
use Expected::{Fails, Unnoticed};
use Operation::{Any, AnyPut, CompleteUpload, CreateUpload, Delete, Get, GetRange};
use Operation::{List, Put, PutNew, PutPart};
use support::s3::{Fault, Kind, Operation, S3Server};

/// Operation of a run while a fault lasts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum During {
    Claim,
    Save,
    Resume,
    Retention,
}

/// Effect on a run.
#[derive(Debug, Clone, Copy)]
enum Expected {
    Unnoticed,
    /// An error with this text; the next try succeeds.
    Fails(&'static str),
}

struct Row {
    during: During,
    on: Operation,
    kind: Kind,
    times: usize,
    expected: Expected,
}

impl Row {
    /// Faults that pass have more time than a busy machine needs for them.
    fn patience(&self) -> Duration {
        match (self.expected, &self.kind) {
            (Unnoticed, Kind::Silence(_)) | (Fails(_), _) => PATIENCE,
            (Unnoticed, _) => 10 * PATIENCE,
        }
    }
}

const ALWAYS: usize = usize::MAX;

fn row(during: During, on: Operation, kind: Kind, times: usize, expected: Expected) -> Row {
    Row { during, on, kind, times, expected }
}

fn answer(status: u16, code: &'static str) -> Kind {
    Kind::Answer { status, code }
}

/// Rows at a time: they wait, most of their time.
const CONCURRENT: usize = 3;

fn check(rows: impl IntoIterator<Item = Row>) {
    let rows: Vec<_> = rows.into_iter().collect();
    for rows in rows.chunks(CONCURRENT) {
        std::thread::scope(|scope| {
            for row in rows {
                scope.spawn(|| check_row(row));
            }
        });
    }
}

fn check_row(row: &Row) {
    let server = S3Server::start();
    let url = server.url("run");
    let run = Attempt::start_with(&url, server.settings(), row.patience());
    prepare(&run, row.during);
    let name = format!("{:?} on {:?} during {:?}", row.kind, row.on, row.during);
    server.begin(Fault { times: row.times, ..Fault::always(row.on, row.kind.clone()) });
    let outcome = act(&run, row.during, &server, &url);
    assert!(server.end_fault() > 0, "{name}: no request of that kind was sent");
    let newest = match row.expected {
        Unnoticed => outcome.map(|()| 20).unwrap_or_else(|error| panic!("{name}: {error}")),
        Fails(text) => {
            let error = outcome.expect_err(&name).to_string();
            assert!(error.contains(text), "{name}: {error}");
            retry(&run, row.during)
        }
    };
    assert_eq!(run.resume().unwrap(), newest, "{name}");
    // Nobody knows the name of an upload if the answer with it is lost.
    let unknown = usize::from(row.on == CreateUpload);
    assert_eq!(server.open_uploads(), unknown, "{name}");
}

/// Saves what the run has before the fault.
fn prepare(run: &Attempt, during: During) {
    if during == Retention {
        run.save(10).unwrap();
    }
    if during != Save {
        run.save(20).unwrap();
    }
}

/// Does what has failed again, and returns the newest step.
fn retry(run: &Attempt, during: During) -> u64 {
    if during != Save {
        return 20;
    }
    run.save(30).unwrap();
    30
}

fn act(run: &Attempt, during: During, server: &S3Server, url: &str) -> Result<(), Error> {
    match during {
        Save => run.save(20),
        Resume => run.resume().map(|step| assert_eq!(step, 20)),
        Retention => {
            let report = run.store.apply_retention(run.claim.attempt, 1, &NoFailpoints);
            assert_eq!((report.removed.len(), report.warnings), (1, Vec::new()));
            Ok(())
        }
        Claim => {
            let next = || Attempt::start(url, server.settings()).claim.attempt;
            assert_eq!([next(), next()], [2, 3]);
            Ok(())
        }
    }
}

#[test]
fn errors_that_pass_are_not_noticed() {
    let mut rows = Vec::new();
    for during in [Save, Resume] {
        for (status, code) in [(500, "InternalError"), (502, ""), (503, "SlowDown"), (429, "")] {
            rows.push(row(during, Any, answer(status, code), 4, Unnoticed));
        }
        rows.push(row(during, Any, Kind::Disconnect, 3, Unnoticed));
        rows.push(row(during, Any, Kind::Silence(Duration::from_millis(1200)), 1, Unnoticed));
    }
    check(rows);
}

#[test]
fn an_answer_that_is_lost_or_names_an_error_changes_nothing() {
    let mut rows = Vec::new();
    for on in [Put, PutNew, CreateUpload, PutPart, CompleteUpload, Delete] {
        rows.push(row(Save, on, Kind::LoseAnswer, 1, Unnoticed));
    }
    for code in ["InternalError", "SlowDown", "RequestTimeout"] {
        rows.push(row(Save, CompleteUpload, Kind::ErrorInside { code }, 2, Unnoticed));
    }
    rows.push(row(Retention, Delete, Kind::LoseAnswer, 2, Unnoticed));
    check(rows);
}

/// 409 says that another request is in flight, 412 that there is an object, but there is none.
#[test]
fn a_condition_that_fails_without_an_object_is_tried_again() {
    check([
        row(Save, PutNew, answer(409, "ConditionalRequestConflict"), 5, Unnoticed),
        row(Save, PutNew, answer(409, "OperationAborted"), 5, Unnoticed),
        row(Save, PutNew, answer(412, "PreconditionFailed"), 1, Unnoticed),
        row(Save, PutNew, Kind::Disconnect, 2, Unnoticed),
        row(Claim, PutNew, answer(409, "ConditionalRequestConflict"), 3, Unnoticed),
    ]);
}

#[test]
fn bodies_that_are_not_what_was_asked_for_are_read_again() {
    check([
        row(Resume, Get, Kind::CutBody, 3, Unnoticed),
        row(Resume, GetRange, Kind::CutBody, 3, Unnoticed),
        row(Resume, GetRange, Kind::ShortBody, 2, Unnoticed),
        row(Resume, GetRange, Kind::OtherRange, 2, Unnoticed),
        row(Resume, GetRange, Kind::WholeObject, 2, Unnoticed),
        row(Resume, GetRange, Kind::OtherEtag, 2, Unnoticed),
        row(Resume, Get, Kind::ShortBody, 2, Unnoticed),
        row(Resume, GetRange, Kind::OtherBytes, 2, Unnoticed),
        row(Resume, Get, Kind::ShortBody, ALWAYS, Fails("MANIFEST.json")),
        row(Resume, GetRange, Kind::OtherBytes, ALWAYS, Fails("expected CRC64/NVME")),
        row(Resume, GetRange, Kind::ShortBody, ALWAYS, Fails("expected a body of ")),
        row(Resume, GetRange, Kind::WholeObject, ALWAYS, Fails("non-partial response")),
        row(Resume, GetRange, Kind::OtherEtag, ALWAYS, Fails("the object was replaced")),
    ]);
}

#[test]
fn listings_may_have_many_pages_or_be_old() {
    let mut rows = Vec::new();
    for during in [Claim, Resume, Retention] {
        rows.push(row(during, List, Kind::PagesOfOneKey, ALWAYS, Unnoticed));
    }
    rows.push(row(Save, List, Kind::PagesOfOneKey, ALWAYS, Unnoticed));
    rows.push(row(Save, List, Kind::StaleList, ALWAYS, Unnoticed));
    rows.push(row(Claim, List, Kind::StaleList, 6, Unnoticed));
    check(rows);
}

/// The clock of this machine, or credentials that have expired and are accepted again later.
#[test]
fn a_refusal_is_named_and_the_next_try_succeeds() {
    let mut rows = Vec::new();
    for during in [Save, Resume] {
        for (status, code) in
            [(403, "RequestTimeTooSkewed"), (403, "ExpiredToken"), (400, "ExpiredToken")]
        {
            rows.push(row(during, Any, answer(status, code), ALWAYS, Fails(code)));
        }
    }
    check(rows);
}

#[test]
fn a_failure_that_lasts_is_named_and_the_next_try_succeeds() {
    let inside = Kind::ErrorInside { code: "AccessDenied" };
    check([
        row(Save, PutPart, answer(503, "SlowDown"), ALWAYS, Fails("SlowDown")),
        row(Save, PutPart, answer(404, "NoSuchUpload"), 1, Fails("NoSuchUpload")),
        row(Save, CompleteUpload, inside, ALWAYS, Fails("complete the upload")),
        row(Save, AnyPut, answer(507, "InsufficientStorage"), ALWAYS, Fails("Insufficient")),
    ]);
}

/// A journal is only there to abort uploads.
#[test]
fn a_save_needs_no_journal_of_its_uploads() {
    let server = S3Server::start();
    let run = Attempt::start(&server.url("run"), server.settings());
    let fault = Fault::always(Put, answer(403, "AccessDenied"));
    server.begin(Fault { suffix: ".upload.json", ..fault });
    run.save(10).unwrap();
    assert_eq!(server.end_fault(), 1);
    assert_eq!(run.resume().unwrap(), 10);
}
