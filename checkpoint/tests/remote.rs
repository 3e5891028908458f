//! Client of object stores, against an S3 server in this process.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use checkpoint::remote::{ExclusivePut, Listing, Multipart, Remote, RemoteOptions, on_silence};
use record::files::IoError;
use support::s3::{ClosedPort, S3Server};

const PART_BYTES: usize = 5 << 20;
/// More than any object has that is read whole.
const BYTES_MAX: u64 = 1 << 30;

fn options(server: &S3Server) -> RemoteOptions {
    RemoteOptions { settings: server.settings(), ..Default::default() }
}

/// Returns settings with which no request goes to a proxy of the environment.
fn direct<const N: usize>(settings: [(&str, String); N]) -> Vec<(String, String)> {
    let no_proxy = [("AWS_PROXY_URL", "http://127.0.0.1:9"), ("AWS_PROXY_EXCLUDES", "127.0.0.1")];
    let no_proxy = no_proxy.map(|(name, value)| (name, value.to_owned()));
    let all = settings.into_iter().chain(no_proxy);
    all.map(|(name, value)| (name.to_owned(), value)).collect()
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

/// Checks the contract that commits rely on; it runs first for every server that is used.
#[test]
fn the_server_honours_if_none_match() {
    let server = S3Server::start();
    let remote = open(&server, "run");
    assert!(remote.honours_exclusive_put("probe").unwrap());
    assert!(!remote.exists("probe").unwrap(), "the probe is removed");
    assert!(matches!(remote.put_exclusive("MANIFEST", "one").unwrap(), ExclusivePut::Created));
    assert!(matches!(remote.put_exclusive("MANIFEST", "two").unwrap(), ExclusivePut::Exists));
    assert_eq!(remote.read("MANIFEST", BYTES_MAX).unwrap(), "one");
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
    assert_eq!(remote.read("MANIFEST", BYTES_MAX).unwrap(), winner.to_string());
}

#[test]
fn objects_are_put_replaced_read_and_deleted() {
    let server = S3Server::start();
    let remote = open(&server, "a/b/");
    assert!(!remote.exists("d00/x.json").unwrap());
    remote.put("d00/x.json", "old").unwrap();
    remote.put("d00/x.json", "newer").unwrap();
    assert_eq!(remote.read("d00/x.json", BYTES_MAX).unwrap(), "newer");
    assert_eq!(std::fs::read(server.file("a/b/d00/x.json")).unwrap(), b"newer");
    let info = remote.stat("d00/x.json").unwrap();
    assert_eq!(info.size_bytes, 5);
    remote.put("empty", "").unwrap();
    assert_eq!(remote.read("empty", BYTES_MAX).unwrap(), "");
    remote.delete("d00/x.json").unwrap();
    remote.delete("d00/x.json").unwrap();
    let error = expect_kind(remote.read("d00/x.json", BYTES_MAX), ErrorKind::NotFound).to_string();
    assert!(error.starts_with("s3://bucket/a/b/d00/x.json: cannot read: NoSuchKey"), "{error}");
    expect_kind(remote.stat("d00/x.json"), ErrorKind::NotFound);
    expect_kind(remote.put("../x", "x"), ErrorKind::InvalidInput);
    remote.put("a b#c%20", "odd").unwrap();
    assert_eq!(remote.read("a b#c%20", BYTES_MAX).unwrap(), "odd");
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
    assert!(second.read("shard", BYTES_MAX).unwrap() == expected);
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
        settings: direct(settings),
        ..Default::default()
    }
}

#[test]
fn a_server_that_is_not_there_is_named_with_the_cause() {
    let closed = ClosedPort::open();
    let remote = Remote::open_with("s3://bucket/run", impatient(closed.port())).unwrap();
    let error = expect_kind(remote.read("x", BYTES_MAX), ErrorKind::NotConnected).to_string();
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

/// Reports about the store of the test below.
static REPORTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

const FAILING: &str = "s3://failing/run";

/// A read, for which a large body may be allowed, is no exception, and neither is a second silence.
#[test]
fn a_store_that_only_fails_is_reported_with_the_cause() {
    on_silence(|report| {
        if report.starts_with(FAILING) {
            REPORTS.lock().unwrap().push(report.to_owned());
        }
    });
    let store = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = store.local_addr().unwrap().port();
    let options = RemoteOptions { patience: Duration::from_secs(30), ..impatient(port) };
    let remote = Remote::open_with(FAILING, options).unwrap();
    for (before, failure) in ["503 Service Unavailable", "429 Too Many Requests"].iter().enumerate()
    {
        let recover_when_reported = || {
            let mut is_reported = false;
            while !is_reported {
                let (mut connection, _) = accept_request(&store);
                is_reported = REPORTS.lock().unwrap().len() > before;
                let status = if is_reported { "404 Not Found" } else { failure };
                let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0");
                connection.write_all(format!("{head}\r\n\r\n").as_bytes()).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(recover_when_reported);
            expect_kind(remote.read("x", BYTES_MAX), ErrorKind::NotFound);
        });
        let reports = REPORTS.lock().unwrap().clone();
        assert_eq!(reports.len(), before + 1, "{reports:?}");
        let cause = format!("; the last try: answered {failure}");
        assert!(reports[before].starts_with(&format!("{FAILING}: no answer for ")), "{reports:?}");
        assert!(reports[before].ends_with(&cause), "{reports:?}");
    }
}

/// Answers with a response to another request, each time that the client tries again.
#[test]
fn an_answer_of_other_bytes_says_nothing_about_the_object() {
    let head = "content-length: 4\r\nlast-modified: Thu, 26 Nov 2026 00:00:00 GMT\r\netag: \"1\"";
    let answers =
        ["206 Partial Content\r\ncontent-range: bytes 4-7/10", "206 Partial Content", "200 OK"];
    for answer in answers {
        let store = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = store.local_addr().unwrap().port();
        let options = RemoteOptions { patience: Duration::from_secs(30), ..impatient(port) };
        let remote = Remote::open_with("s3://bucket/run", options).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..4 {
                    let (mut connection, _) = accept_request(&store);
                    let head = format!("HTTP/1.1 {answer}\r\n{head}\r\nconnection: close\r\n\r\n");
                    connection.write_all(format!("{head}4567").as_bytes()).unwrap();
                }
            });
            expect_kind(remote.read_range("x", 3..7, None), ErrorKind::ConnectionAborted);
        });
    }
}

/// The next connection and the head of its request, which must arrive within a time.
fn accept_request(listener: &TcpListener) -> (TcpStream, String) {
    const DEADLINE: Duration = Duration::from_secs(60);
    listener.set_nonblocking(true).unwrap();
    let started = Instant::now();
    let mut connection = loop {
        match listener.accept() {
            Ok((connection, _)) => break connection,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        assert!(started.elapsed() < DEADLINE, "nobody connects");
        std::thread::sleep(Duration::from_millis(5));
    };
    connection.set_nonblocking(false).unwrap();
    connection.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        connection.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    (connection, String::from_utf8(head).unwrap())
}

/// Whatever the environment has: the client library panics where a value is no part of a request.
#[test]
fn no_value_of_a_setting_is_a_panic() {
    let port = ClosedPort::open();
    let closed = port.url();
    let s3 = [
        ("AWS_ENDPOINT_URL", &*closed),
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
    ];
    let google = [("GOOGLE_BASE_URL", &*closed), ("GOOGLE_SKIP_SIGNATURE", "true")];
    let azure = [
        ("AZURE_STORAGE_ENDPOINT", &*closed),
        ("AZURE_STORAGE_ACCOUNT_NAME", "name"),
        ("AZURE_STORAGE_TOKEN", "token"),
    ];
    let stores = [
        ("s3://bucket/run", &S3_VARIABLES[..], &s3[..]),
        ("gs://bucket/run", &GOOGLE_VARIABLES, &google),
        ("az://bucket/run", &AZURE_VARIABLES, &azure),
    ];
    let values = ["a\nb", "http://[", "\u{e9}", "//", "{}"];
    for (url, variables, base) in stores {
        for (name, value) in variables.iter().flat_map(|name| values.map(|value| (*name, value))) {
            let settings = base.iter().copied().chain([(name, value)]);
            let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let settings = settings.collect();
            let patience = Duration::from_millis(3);
            let options = RemoteOptions { patience, settings, ..Default::default() };
            match Remote::open_with(url, options) {
                Ok(remote) => drop(remote.read("x", BYTES_MAX).unwrap_err()),
                Err(error) => assert!(error.to_string().contains(name), "{name}={value}: {error}"),
            }
        }
    }
}

/// Whoever writes the token of a pod may write another one at any time.
#[test]
fn a_token_file_that_is_no_header_later_is_an_error_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "good").unwrap();
    let agent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = agent.local_addr().unwrap();
    let settings = [
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9".to_owned()),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("http://{address}/v1/credentials")),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file.to_str().unwrap().to_owned()),
    ];
    let options = RemoteOptions {
        patience: Duration::from_secs(3),
        settings: direct(settings),
        ..Default::default()
    };
    let remote = Remote::open_with("s3://bucket/run", options).unwrap();

    let refused = std::thread::spawn({
        let remote = remote.clone();
        move || remote.read("x", BYTES_MAX).unwrap_err()
    });
    let (mut connection, request) = accept_request(&agent);
    let request = request.to_ascii_lowercase();
    assert!(request.contains("authorization: good\r\n"), "{request}");
    connection.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").unwrap();
    refused.join().unwrap();

    std::fs::write(&file, "hidden\n").unwrap();
    let error = remote.read("x", BYTES_MAX).unwrap_err().to_string();
    let name = format!("{} (AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE): ", file.display());
    assert!(error.contains(&name) && error.contains("without a line break"), "{error}");
    assert!(!error.contains("hidden"), "{error}");
}

const S3_VARIABLES: [&str; 18] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_HTTP2_MAX_FRAME_SIZE",
    "AWS_METADATA_ENDPOINT",
    "AWS_PROXY_URL",
    "AWS_REGION",
    "AWS_REQUEST_PAYER",
    "AWS_S3_EXPRESS",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SESSION_TOKEN",
    "AWS_SKIP_SIGNATURE",
    "AWS_TIMEOUT",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
];

const GOOGLE_VARIABLES: [&str; 5] = [
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_BASE_URL",
    "GOOGLE_PROXY_URL",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_SKIP_SIGNATURE",
];

const AZURE_VARIABLES: [&str; 9] = [
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_AUTHORITY_HOST",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_USE_EMULATOR",
    "AZURE_CLIENT_SECRET",
    "IDENTITY_ENDPOINT",
];
