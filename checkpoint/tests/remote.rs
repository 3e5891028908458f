//! The client of object stores, against an S3 server in this process.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../tests/support/s3.rs"]
mod s3;

use std::io::ErrorKind;
use std::net::TcpListener;
use std::time::Duration;

use checkpoint::durable::IoError;
use checkpoint::remote::{ExclusivePut, Listing, Multipart, Remote, RemoteOptions};
use s3::S3Server;

const PART_BYTES: usize = 5 << 20;

fn options(server: &S3Server) -> RemoteOptions {
    let settings = server.environment().map(|(name, value)| (name.to_owned(), value));
    RemoteOptions { settings: settings.to_vec(), ..Default::default() }
}

fn open(server: &S3Server, prefix: &str) -> Remote {
    Remote::open_with(&server.url(prefix), options(server)).unwrap()
}

#[track_caller]
fn expect_kind<T: std::fmt::Debug>(result: Result<T, IoError>, kind: ErrorKind) -> IoError {
    let error = result.unwrap_err();
    assert_eq!(error.source.kind(), kind, "{error}");
    error
}

/// The contract that commits rely on; it comes first for every server that is used.
#[test]
fn the_server_honours_if_none_match() {
    let server = S3Server::start();
    let remote = open(&server, "run");
    assert!(remote.honours_exclusive_put("probe").unwrap());
    assert!(!remote.exists("probe").unwrap(), "the probe is removed");
    assert!(matches!(remote.put_exclusive("MANIFEST", "one").unwrap(), ExclusivePut::Created));
    assert!(matches!(remote.put_exclusive("MANIFEST", "two").unwrap(), ExclusivePut::Exists));
    assert_eq!(remote.read("MANIFEST").unwrap(), "one");
}

#[test]
fn of_competing_writers_one_creates_the_object() {
    let server = S3Server::start();
    let remote = open(&server, "run");
    let put = |writer: usize| remote.put_exclusive("MANIFEST", format!("{writer}")).unwrap();
    let created = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8).map(|writer| scope.spawn(move || put(writer))).collect();
        let results = writers.into_iter().map(|writer| writer.join().unwrap());
        results.map(|result| matches!(result, ExclusivePut::Created)).collect::<Vec<_>>()
    });
    assert_eq!(created.iter().filter(|created| **created).count(), 1, "{created:?}");
    let winner = created.iter().position(|created| *created).unwrap();
    assert_eq!(remote.read("MANIFEST").unwrap(), winner.to_string());
}

#[test]
fn objects_are_put_replaced_read_and_deleted() {
    let server = S3Server::start();
    let remote = open(&server, "a/b/");
    assert!(!remote.exists("d00/x.json").unwrap());
    remote.put("d00/x.json", "old").unwrap();
    remote.put("d00/x.json", "newer").unwrap();
    assert_eq!(remote.read("d00/x.json").unwrap(), "newer");
    assert_eq!(std::fs::read(server.file("a/b/d00/x.json")).unwrap(), b"newer");
    let info = remote.stat("d00/x.json").unwrap();
    assert_eq!(info.size_bytes, 5);
    remote.put("empty", "").unwrap();
    assert_eq!(remote.read("empty").unwrap(), "");
    remote.delete("d00/x.json").unwrap();
    remote.delete("d00/x.json").unwrap();
    let error = expect_kind(remote.read("d00/x.json"), ErrorKind::NotFound).to_string();
    assert!(error.starts_with("s3://bucket/a/b/d00/x.json: cannot read: NoSuchKey"), "{error}");
    expect_kind(remote.stat("d00/x.json"), ErrorKind::NotFound);
    expect_kind(remote.put("../x", "x"), ErrorKind::InvalidInput);
    remote.put("a b#c%20", "odd").unwrap();
    assert_eq!(remote.read("a b#c%20").unwrap(), "odd");
    assert_eq!(remote.list("").unwrap().objects, ["a b#c%20", "empty"]);
}

#[test]
fn ranges_are_exact_and_of_one_version() {
    let server = S3Server::start();
    let remote = open(&server, "");
    remote.put("x", "0123456789").unwrap();
    let etag = remote.stat("x").unwrap().etag.unwrap();
    assert_eq!(remote.read_range("x", 3..7, None).unwrap(), "3456");
    assert_eq!(remote.read_range("x", 0..10, Some(&etag)).unwrap(), "0123456789");
    assert_eq!(remote.read_range("x", 4..4, None).unwrap(), "");
    expect_kind(remote.read_range("x", 8..12, None), ErrorKind::UnexpectedEof);
    remote.read_range("x", 12..14, None).unwrap_err();
    expect_kind(remote.read_range("y", 0..1, None), ErrorKind::NotFound);
    remote.put("x", "9876543210").unwrap();
    let error = remote.read_range("x", 0..4, Some(&etag)).unwrap_err().to_string();
    assert!(error.contains("the object was replaced"), "{error}");
}

#[test]
fn an_upload_in_parts_goes_on_in_another_process() {
    let server = S3Server::start();
    let first = open(&server, "run");
    let upload = first.create_multipart("shard").unwrap();
    let journal = serde_json::to_string(&upload).unwrap();
    let tail = first.put_part(&upload, 1, vec![2; 17]).unwrap(); // parts come in any order

    let second = open(&server, "run");
    let upload: Multipart = serde_json::from_str(&journal).unwrap();
    second.put_part(&upload, 0, vec![0; PART_BYTES]).unwrap();
    let head = second.put_part(&upload, 0, vec![1; PART_BYTES]).unwrap(); // the last one counts
    assert!(!second.exists("shard").unwrap(), "visible before it is complete");
    second.complete_multipart(&upload, &[head, tail]).unwrap();
    let mut expected = vec![1; PART_BYTES];
    expected.extend([2; 17]);
    assert!(second.read("shard").unwrap() == expected);
}

#[test]
fn an_aborted_upload_leaves_nothing() {
    let server = S3Server::start();
    let remote = open(&server, "run");
    let upload = remote.create_multipart("shard").unwrap();
    let part = remote.put_part(&upload, 0, "x").unwrap();
    remote.abort_multipart(&upload).unwrap();
    remote.complete_multipart(&upload, &[part]).unwrap_err();
    assert!(!remote.exists("shard").unwrap());
    assert_eq!(remote.list_all("").unwrap(), [""; 0]);
}

#[test]
fn folders_are_listed_and_deleted() {
    let server = S3Server::start();
    let remote = open(&server, "run");
    let keys = ["RUN.json", "s1/MANIFEST.json", "s1/d00/a", "s1/d00/b", "s10/MANIFEST.json"];
    keys.iter().for_each(|key| remote.put(key, "x").unwrap());
    open(&server, "run2").put("other", "x").unwrap();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let root = Listing { folders: names(&["s1", "s10"]), objects: names(&["RUN.json"]) };
    assert_eq!(remote.list("").unwrap(), root);
    let folder = Listing { folders: names(&["d00"]), objects: names(&["MANIFEST.json"]) };
    assert_eq!(remote.list("s1").unwrap(), folder);
    assert_eq!(remote.list("nothing").unwrap(), Listing::default());
    assert_eq!(remote.list_all("").unwrap(), keys);
    assert_eq!(remote.list_all("s1/d00").unwrap(), ["s1/d00/a", "s1/d00/b"]);

    let mut gone = remote.list_all("s1").unwrap();
    gone.push("never/there".to_owned());
    remote.delete_many(&gone).unwrap();
    assert_eq!(remote.list_all("").unwrap(), ["RUN.json", "s10/MANIFEST.json"]);
}

#[test]
fn wrong_credentials_are_refused_with_the_stores_words() {
    let server = S3Server::start();
    let mut options = options(&server);
    options.settings.push(("AWS_SECRET_ACCESS_KEY".to_owned(), "wrong".to_owned()));
    let remote = Remote::open_with(&server.url("run"), options).unwrap();
    let error = expect_kind(remote.put("x", "x"), ErrorKind::PermissionDenied).to_string();
    assert!(error.contains("s3://bucket/run/x: cannot write: SignatureDoesNotMatch"), "{error}");
    expect_kind(remote.put_exclusive("x", "x"), ErrorKind::PermissionDenied);
}

/// Options that give up soon, for a server at this port.
fn impatient(port: u16) -> RemoteOptions {
    let settings = [
        ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")),
        ("AWS_ACCESS_KEY_ID", "test".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "test".to_owned()),
    ];
    RemoteOptions {
        patience: Duration::from_millis(600),
        settings: settings.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        ..Default::default()
    }
}

#[test]
fn a_server_that_is_not_there_is_named_with_the_cause() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let remote = Remote::open_with("s3://bucket/run", impatient(port)).unwrap();
    let error = expect_kind(remote.read("x"), ErrorKind::NotConnected).to_string();
    assert!(error.contains("s3://bucket/run/x: cannot read: Connection refused"), "{error}");
    expect_kind(remote.put_exclusive("x", "x"), ErrorKind::NotConnected);
}

/// The listener's backlog accepts connections, and nobody reads from them.
#[test]
fn a_server_that_does_not_answer_leaves_a_put_in_doubt() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let remote = Remote::open_with("s3://bucket/run", impatient(port)).unwrap();
    expect_kind(remote.stat("x"), ErrorKind::TimedOut);
    let put = remote.put_exclusive("x", "x").unwrap();
    let ExclusivePut::InDoubt(error) = put else { panic!("{put:?}") };
    assert_eq!(error.source.kind(), ErrorKind::TimedOut, "{error}");
}
