//! Training from an object store: an S3 server in this process, ranks in others.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::s3::{self, ClosedPort, S3Server};
use support::{Finished, Folder, finish, mpirun, text, yardstick};

const FILE: &str = "text.bin";

/// Text of the length of an AWS secret key, where a name is expected.
const SECRET: &str = "hidden/hidden+hidden/hidden+hidden/hidde";

/// Flags of a short run on a token file.
fn flags(folder: &Folder, file: &str) -> Vec<String> {
    let settings = [
        "data.source=files".to_owned(),
        format!("data.files=['{file}']"),
        format!("run.data_cache='{}'", folder.sibling("cache").display()),
        "run.data_deadline=3s".to_owned(),
        "telemetry.matmul_probe=0s".to_owned(),
    ];
    settings.into_iter().flat_map(|setting| ["--set".to_owned(), setting]).collect()
}

/// Tokens on the server, and a copy on this machine.
fn store_tokens(server: &S3Server, copy: &Path) {
    let bytes = (0..40_000_u32).map(|position| (position.wrapping_mul(position) / 7 % 251) as u16);
    let bytes: Vec<u8> = bytes.flat_map(u16::to_le_bytes).collect();
    std::fs::write(copy, &bytes).unwrap();
    std::fs::write(server.file(FILE), &bytes).unwrap();
}

/// Trains two steps in a folder of this name.
fn train(mut command: Command, folder: &Folder, run: &str, flags: &[String]) -> Finished {
    let out = text(&folder.sibling(run));
    command.args(["train", "--steps", "2", "--out", &out]).args(flags);
    finish(command)
}

fn record(folder: &Folder, run: &str) -> Value {
    support::record(&folder.sibling(run))
}

fn downloads(server: &S3Server) -> usize {
    let line = format!("GET /{}/{FILE}", s3::BUCKET);
    server.requests().iter().filter(|request| **request == line).count()
}

#[test]
fn two_ranks_train_from_one_download_as_from_a_file() {
    let server = S3Server::start();
    let folder = Folder::new();
    let copy = folder.sibling("copy.bin");
    store_tokens(&server, &copy);
    let remote = flags(&folder, &server.url(FILE));
    let ranks = || {
        let mut command = mpirun(2, &[]);
        command.envs(server.environment());
        command
    };
    train(ranks(), &folder, "first", &remote).expect(0);
    assert_eq!(downloads(&server), 1);
    train(ranks(), &folder, "again", &remote).expect(0);
    assert_eq!(downloads(&server), 1);
    train(mpirun(2, &[]), &folder, "local", &flags(&folder, &text(&copy))).expect(0);
    let run = |name| {
        let record = record(&folder, name);
        (record["workload"]["id"].clone(), record["fingerprint"].clone())
    };
    assert_eq!(run("first"), run("local"));
    assert_eq!(run("again"), run("local"));
}

#[test]
fn a_server_that_is_not_there_is_one_error() {
    let closed = ClosedPort::open();
    let folder = Folder::new();
    let mut command = yardstick(&[]);
    command.env("AWS_ENDPOINT_URL", closed.url());
    command.envs([("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")]);
    let failed = train(command, &folder, "run", &flags(&folder, "s3://bucket/text.bin")).expect(2);
    let failed = failed.expect_stderr(&["s3://bucket/text.bin: cannot stat: Connection refused"]);
    assert_eq!(failed.stderr.matches("s3://").count(), 1, "{}", failed.stderr);
}

fn bench_with_files(server: &S3Server, folder: &Folder, profile: &str) -> Finished {
    finish(bench_command(server, folder, profile))
}

/// Returns `data bench` on an object, with files of AWS's tools and nothing else in the
/// environment.
fn bench_command(server: &S3Server, folder: &Folder, profile: &str) -> Command {
    let [(_, endpoint), (_, key), (_, secret), _] = server.environment();
    let [config, credentials] = ["config", "credentials"].map(|name| folder.sibling(name));
    let config_text = format!(
        "[profile plain]\nendpoint_url = {endpoint}\n\
         [profile \"my lab\"]\nendpoint_url = {endpoint}\n\
         [profile commented] # of the lab\n; ours\nendpoint_url : {endpoint}\n\
         [profile services]\nservices = lab\nendpoint_url = http://127.0.0.1:1\n\
         [services lab]\nec2 =\n  endpoint_url = http://127.0.0.1:1\ns3 =\n  # ours\n\n  \
         endpoint_url = {endpoint}\n\
         [profile nested]\ndynamodb =\n  endpoint_url = http://127.0.0.1:1\n\
         endpoint_url = {endpoint}\n\
         [profile upper]\nENDPOINT_URL = {endpoint}\n\
         [profile role]\nrole_arn = arn:aws:iam::1:role/r\nendpoint_url = {endpoint}\n\
         [profile process]\ncredential_process = /bin/true\n\
         [profile lost]\nservices = none\n\
         [profile quoted]\nendpoint_url = \"{endpoint}\"\n\
         [profile colon]\ns3 =\n  endpoint_url: {endpoint}\n\
         [profile unknown]\nservices = {SECRET}\n"
    );
    let names =
        ["plain", "my lab", "commented", "services", "nested", "role", "lost", "colon", "unknown"];
    let keys = format!("aws_access_key_id = {key}\naws_secret_access_key = {secret}\n");
    let mut credentials_text: String =
        names.iter().map(|name| format!("[{name}]\n{keys}")).collect();
    credentials_text.push_str(&format!("[upper]\n{}", keys.replace("aws", "AWS")));
    credentials_text.push_str(&format!("[quoted]\n{keys}"));
    credentials_text.push_str(&format!("[beside]\n{keys}endpoint_url = {endpoint}\n"));
    std::fs::write(&config, config_text).unwrap();
    std::fs::write(&credentials, credentials_text).unwrap();
    let mut command = yardstick(&["data", "bench"]);
    command.args(flags(folder, &server.url(FILE)));
    let refuses = "http://127.0.0.1:9"; // in the place of the internet
    command.envs([("AWS_PROFILE", profile), ("HTTPS_PROXY", refuses), ("https_proxy", refuses)]);
    command.envs([("AWS_CONFIG_FILE", &config), ("AWS_SHARED_CREDENTIALS_FILE", &credentials)]);
    command
}

/// Reads profiles as botocore does; a form that is not read must not send requests to AWS.
#[test]
fn a_profile_is_read_in_all_forms_that_the_tools_of_aws_read() {
    let server = S3Server::start();
    let folder = Folder::new();
    store_tokens(&server, &folder.sibling("copy.bin"));
    let names = ["plain", "my lab", "commented", "services", "nested", "upper", "beside"];
    for (before, profile) in names.into_iter().enumerate() {
        bench_with_files(&server, &folder, profile).expect(0);
        assert!(downloads(&server) > before, "{profile}");
    }
    let refused = [
        ("nobody", "AWS_PROFILE: expected a profile of "),
        ("role", "role_arn of the profile \"role\" in "),
        ("process", "credential_process of the profile \"process\" in "),
        ("lost", "expected a section [services none] in "),
        ("unknown", "expected a section [services NAME] in "),
        (SECRET, "found another name"),
        ("quoted", "endpoint_url of the profile \"quoted\" in "),
        ("colon", "config: line 35: expected NAME = VALUE, found another form"),
    ];
    for (profile, expected) in refused {
        let failed = bench_with_files(&server, &folder, profile).expect(2);
        let failed =
            failed.expect_stderr(&["s3://bucket: cannot use the object store: ", expected]);
        for secret in ["hidden", "endpoint_url: "] {
            assert!(!failed.stderr.contains(secret), "{profile}: {}", failed.stderr);
        }
    }
}

/// SDKs and boto3 read the two variables in different orders.
#[test]
fn two_variables_must_name_the_same_profile() {
    let server = S3Server::start();
    let folder = Folder::new();
    store_tokens(&server, &folder.sibling("copy.bin"));
    let also = |other: &str| {
        let mut command = bench_command(&server, &folder, "plain");
        command.env("AWS_DEFAULT_PROFILE", other);
        finish(command)
    };
    also("plain").expect(0);
    also("").expect(0);
    let expected = "AWS_PROFILE and AWS_DEFAULT_PROFILE: they name different profiles";
    also("my lab").expect(2).expect_stderr(&[expected, "unset one"]);
}

/// Uses settings with white space, as secrets of Kubernetes have it.
#[test]
fn white_space_around_a_setting_is_left_out_and_what_is_malformed_is_named() {
    let server = S3Server::start();
    let folder = Folder::new();
    store_tokens(&server, &folder.sibling("copy.bin"));
    let bench = |url: &str, name: &str, value: &str| {
        let mut command = yardstick(&["data", "bench"]);
        command.args(flags(&folder, url)).envs(server.environment());
        command.env(name, value);
        finish(command)
    };
    for (name, value) in server.environment() {
        bench(&server.url(FILE), name, &format!(" {value}\r\n")).expect(0);
    }
    let (s3, gs, az) = (server.url(FILE), "gs://bucket/x.bin", "az://container/x.bin");
    let token = text(&folder.sibling("token"));
    std::fs::write(&token, "hidden\n").unwrap();
    let a_file = "expected the path of a file";
    let malformed = [
        (&*s3, "AWS_ENDPOINT_URL", "127.0.0.1:9", "relative URL without a base"),
        (&*s3, "AWS_ENDPOINT_URL", "http://h:99999", "invalid port number"),
        (&*s3, "AWS_ENDPOINT_URL", " ", "expected a URL, found nothing"),
        (&*s3, "AWS_SECRET_ACCESS_KEY", "hidden\nhidden", "expected printable ASCII characters"),
        (&*s3, "AWS_SKIP_SIGNATURE", "maybe", "failed to parse \"maybe\" as boolean"),
        (&*s3, "AWS_REGION", "a/b", "found \"a/b\""),
        (gs, "GOOGLE_BASE_URL", "ftp://h", "found \"ftp://h\""),
        (gs, "GOOGLE_SERVICE_ACCOUNT_KEY", "\"hidden\"", "not what the store expects there"),
        (az, "AZURE_STORAGE_ACCOUNT_NAME", "a b", "found \"a b\""),
        (gs, "GOOGLE_APPLICATION_CREDENTIALS", "{\"key\": \"hidden\"}", a_file),
        (gs, "GOOGLE_SERVICE_ACCOUNT", "{\n\"key\": \"hidden\"}", a_file),
        (az, "AZURE_STORAGE_ENDPOINT", "https://h?sv=1&sig=hidden", "behind \"https://h\""),
        (&*s3, "AWS_ENDPOINT_URL", "https://h/?token=hidden", "behind \"https://h\""),
        (az, "AZURE_STORAGE_ACCOUNT_NAME", "acct;AccountKey=hidden", "expected letters"),
        (&*s3, "AWS_WEB_IDENTITY_TOKEN_FILE", "hidden", a_file),
        (&*s3, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &*token, "without a line break"),
    ];
    for (url, name, value, expected) in malformed {
        let failed = bench(url, name, value).expect(2);
        let failed = failed.expect_stderr(&["cannot use the object store: ", name, expected]);
        assert_eq!(failed.stderr.trim().lines().count(), 1, "{}", failed.stderr);
        assert!(!failed.stderr.contains("hidden"), "{}", failed.stderr);
    }
    let failed = bench("s3://bu cket/x.bin", "AWS_REGION", "x").expect(2);
    failed.expect_stderr(&["expected the name of a bucket, found \"bu cket\""]);
}

#[test]
fn a_proxy_that_cannot_be_used_is_refused_only_where_it_would_be_used() {
    let server = S3Server::start();
    let folder = Folder::new();
    store_tokens(&server, &folder.sibling("copy.bin"));
    let bench = |variables: &[(&str, &str)]| {
        let mut command = yardstick(&["data", "bench"]);
        command.args(flags(&folder, &server.url(FILE))).envs(server.environment());
        command.envs([("NO_PROXY", ""), ("HTTP_PROXY", ""), ("ALL_PROXY", "")]);
        command.envs(variables.iter().copied());
        finish(command)
    };
    let socks = "socks5://127.0.0.1:1080";
    bench(&[("HTTPS_PROXY", socks)]).expect(0); // the store is reached by http
    bench(&[("ALL_PROXY", socks), ("NO_PROXY", "example.com,127.0.0.0/8")]).expect(0);
    for name in ["HTTP_PROXY", "ALL_PROXY"] {
        let expected = format!("{name}: expected a URL, as in http://HOST:PORT, found \"socks5://");
        bench(&[(name, socks), ("NO_PROXY", "example.com")]).expect(2).expect_stderr(&[&expected]);
    }
    let failed = bench(&[("HTTP_PROXY", "http://user:hidden@h:99999")]).expect(2);
    let failed = failed.expect_stderr(&["HTTP_PROXY: ", "invalid port number"]);
    assert_eq!(failed.stderr.trim().lines().count(), 1, "{}", failed.stderr);
    assert!(!failed.stderr.contains("hidden"), "{}", failed.stderr);
}

/// Some URLs do not follow from the settings alone.
#[test]
fn a_proxy_is_checked_for_the_url_of_each_request() {
    let folder = Folder::new();
    let token = text(&folder.sibling("token"));
    std::fs::write(&token, "token").unwrap();
    let closed = ClosedPort::open();
    let bench = |url: &str, variables: &[(&str, &str)]| {
        let mut command = yardstick(&["data", "bench"]);
        command.args(flags(&folder, url)).envs([("HTTP_PROXY", ""), ("ALL_PROXY", "")]);
        command.envs([("NO_PROXY", ""), ("HTTPS_PROXY", "socks5://user:hidden@h:1080")]);
        command.envs(variables.iter().copied());
        finish(command).expect(2)
    };
    let is_refused = |failed: &Finished| {
        assert!(!failed.stderr.contains("hidden"), "{}", failed.stderr);
        failed.stderr.contains("HTTPS_PROXY: expected a URL, as in http://HOST:PORT, found \"socks")
    };

    // No resolver sends this name: it is too long for one.
    let region = "a".repeat(64);
    let host = format!("bucket.s3.{region}.amazonaws.com");
    let virtual_host = [
        ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true"),
        ("AWS_REGION", &region),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("NO_PROXY", &host),
    ];
    let failed = bench("s3://bucket/x.bin", &virtual_host);
    assert!(!is_refused(&failed), "{}", failed.stderr);
    assert!(is_refused(&bench("s3://bucket/x.bin", &virtual_host[..4])));

    let emulator =
        [("AZURE_STORAGE_USE_EMULATOR", "true"), ("AZURITE_BLOB_STORAGE_URL", &*closed.url())];
    let failed = bench("az://container/x.bin", &emulator);
    assert!(!is_refused(&failed), "{}", failed.stderr);
    failed.expect_stderr(&["Connection refused"]);

    let credentials = [
        ("AWS_ENDPOINT_URL", &*closed.url()),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", &token),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r"),
        ("AWS_ENDPOINT_URL_STS", "https://127.0.0.1:9"),
    ];
    assert!(is_refused(&bench("s3://bucket/x.bin", &credentials)));
    assert!(is_refused(&bench("gs://bucket/x.bin", &[("GOOGLE_SKIP_SIGNATURE", "true")])));
}

#[test]
fn bench_prints_a_rate_for_each_way_that_data_takes() {
    let server = S3Server::start();
    let folder = Folder::new();
    let copy = folder.sibling("copy.bin");
    store_tokens(&server, &copy);
    let bench = |file: &str, more: &[&str]| {
        let mut command = yardstick(&["data", "bench"]);
        command.args(flags(&folder, file)).args(more).envs(server.environment());
        finish(command)
    };
    let printed = bench(&server.url(FILE), &["--json"]).expect(0).stdout;
    let rates: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(rates[0]["file"], server.url(FILE));
    assert_eq!(rates[0]["size_bytes"], 80_000);
    for key in ["download_bytes_per_second", "warm_bytes_per_second"] {
        assert!(rates[0][key].as_f64() > Some(0.0), "{key} in {printed}");
    }
    let printed = bench(&text(&copy), &["--json"]).expect(0).stdout;
    let rates: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(rates[0]["download_bytes_per_second"], Value::Null);
    let table = bench(&text(&copy), &[]).expect(0).stdout;
    for part in ["download", "cold", "warm", "80.0 kB", "copy.bin"] {
        assert!(table.contains(part), "no {part:?} in {table}");
    }
    let synthetic = finish(yardstick(&["data", "bench"])).expect(2);
    synthetic.expect_stderr(&["expected data.files, found none"]);
}
