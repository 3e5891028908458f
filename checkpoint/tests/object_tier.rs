//! Contract of tiers on the tier of an object store, also when answers are lost, and a store on it.
//! `YARDSTICK_VERSITYGW` names the program of another server for the tests that need no more than a
//! server.
#![allow(unsafe_code)] // the environment of the process names the server
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;

use checkpoint::remote::{Remote, RemoteOptions};
use checkpoint::tier::{ObjectTier, Tier, contract};
use checkpoint::{
    Dtype, Identity, NoFailpoints, Part, PartMut, Save, SingleRank, Store, TensorBox,
};
use record::files::Published;
use support::s3::S3Server;
use support::versitygw::VersityGw;

/// The smallest part that S3 accepts.
const PART_BYTES: usize = 5 << 20;

/// Server for all tests, and a connection that loses answers: their addresses are in the
/// environment of the process when a client is made.
struct Servers {
    server: S3Server,
    proxy: Proxy,
    lossy: Remote,
}

static SERVERS: LazyLock<Servers> = LazyLock::new(|| {
    let server = S3Server::start();
    let set = |name: &str, value: &str| {
        // SAFETY: every test starts here, and nothing else reads the environment meanwhile.
        unsafe { std::env::set_var(name, value) };
    };
    server.environment().iter().for_each(|(name, value)| set(name, value));
    let (_, endpoint) = &server.environment()[0];
    let proxy = Proxy::start(endpoint.strip_prefix("http://").unwrap().parse().unwrap());
    set("AWS_ENDPOINT_URL", &format!("http://{}", proxy.address));
    let lossy = Remote::open(&server.url("lossy")).unwrap();
    set("AWS_ENDPOINT_URL", endpoint);
    Servers { server, proxy, lossy }
});

/// Fault of the answer to one request.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Lost,
    FlippedBit,
}

/// The request of the next fault.
#[derive(Debug, Clone)]
struct Target {
    fault: Fault,
    /// A part of its text.
    pattern: String,
}

/// Forwards connections; cuts one when the answer to a certain request arrives, or flips a bit of
/// its body.
struct Proxy {
    address: SocketAddr,
    next: Arc<Mutex<Option<Target>>>,
}

impl Proxy {
    fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let next = Arc::<Mutex<Option<Target>>>::default();
        let target = Arc::clone(&next);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(server).unwrap();
                forward(client, server, Arc::clone(&target));
            }
        });
        Self { address, next }
    }

    fn lose_answer_to(&self, request: &str) {
        self.plant(Fault::Lost, request);
    }

    fn plant(&self, fault: Fault, request: &str) {
        *self.next.lock().unwrap() = Some(Target { fault, pattern: request.to_owned() });
    }

    fn has_done_it(&self) -> bool {
        self.next.lock().unwrap().is_none()
    }
}

fn forward(client: TcpStream, server: TcpStream, next: Arc<Mutex<Option<Target>>>) {
    let pending = Arc::<Mutex<Option<Fault>>>::default();
    let fault = Arc::clone(&pending);
    let [from_client, to_client] = [client.try_clone().unwrap(), client];
    let [from_server, to_server] = [server.try_clone().unwrap(), server];
    thread::spawn(move || {
        copy(from_client, to_server, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let taken = next.lock().unwrap().take_if(|next| text.contains(&next.pattern));
            if let Some(target) = taken {
                *pending.lock().unwrap() = Some(target.fault);
            }
            true
        });
    });
    thread::spawn(move || {
        copy(from_server, to_client, |bytes| {
            let mut fault = fault.lock().unwrap();
            let is_body = !bytes.ends_with(b"\r\n\r\n");
            if matches!(*fault, Some(Fault::FlippedBit)) && is_body {
                *bytes.last_mut().unwrap() ^= 1;
                *fault = None;
            }
            !matches!(*fault, Some(Fault::Lost))
        });
    });
}

/// Copies what the observer has seen, until one end is closed or the observer says so.
fn copy(mut from: TcpStream, mut to: TcpStream, mut observe: impl FnMut(&mut [u8]) -> bool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        if !observe(&mut buffer[..bytes]) || to.write_all(&buffer[..bytes]).is_err() {
            break;
        }
    }
    for end in [from, to] {
        let _ = end.shutdown(Shutdown::Both);
    }
}

fn tier(prefix: &str) -> ObjectTier {
    let server = &SERVERS.server; // before the environment is read
    let remote = Remote::open(&server.url(prefix)).unwrap();
    ObjectTier::new(remote).with_part_bytes(PART_BYTES)
}

/// A prefix on a server of its own.
struct Place {
    remote: Remote,
    open_uploads: Box<dyn Fn() -> usize>,
}

impl Place {
    fn new(prefix: &str) -> Self {
        match VersityGw::start() {
            Some(other) => Self::on(prefix, other.settings(), move || other.open_uploads()),
            None => {
                let server = S3Server::start();
                Self::on(prefix, server.settings(), move || server.open_uploads())
            }
        }
    }

    fn on(
        prefix: &str,
        settings: Vec<(String, String)>,
        open_uploads: impl Fn() -> usize + 'static,
    ) -> Self {
        let options = RemoteOptions { settings, ..Default::default() };
        let remote = Remote::open_with(&format!("s3://bucket/{prefix}"), options).unwrap();
        Self { remote, open_uploads: Box::new(open_uploads) }
    }

    fn tier(&self) -> ObjectTier {
        ObjectTier::new(self.remote.clone()).with_part_bytes(PART_BYTES)
    }
}

#[test]
fn keeps_the_contract() {
    let place = Place::new("contract/of/tiers");
    let honours = place.remote.honours_exclusive_put("probe").unwrap();
    assert!(honours, "the server ignores If-None-Match");
    contract::run_all(&place.tier(), PART_BYTES);
    assert_eq!((place.open_uploads)(), 0);
}

/// Aborts it once with the folder of the object, and once by another upload of it.
#[test]
fn an_upload_that_is_left_open_is_aborted() {
    let place = Place::new("run");
    let tier = place.tier();
    let data = vec![5; PART_BYTES + 1];
    let start = || {
        let mut upload = tier.create("s1/d00/shard").unwrap();
        upload.write(&data).unwrap();
        upload
    };
    for is_written_again in [true, false] {
        std::mem::forget(start());
        assert_eq!((place.open_uploads)(), 1);
        if is_written_again {
            start().finish().unwrap();
            assert!(tier.read("s1/d00/shard", 1 << 30).unwrap() == data);
        } else {
            tier.delete_folder("s1", "MANIFEST.json").unwrap();
            assert_eq!(tier.list("").unwrap(), []);
        }
        assert_eq!((place.open_uploads)(), 0);
    }
}

/// Covers all faults in one test, as only one answer is lost at a time.
#[test]
fn lost_answers_change_nothing() {
    let Servers { proxy, lossy, .. } = &*SERVERS;
    let tier = ObjectTier::new(lossy.clone()).with_part_bytes(PART_BYTES);
    let publish = |bytes: &[u8]| {
        proxy.lose_answer_to("if-none-match");
        let published = tier.publish("MANIFEST.json", bytes, &mut || {}).unwrap();
        assert!(proxy.has_done_it());
        published
    };
    assert_eq!(publish(b"ours"), Published::Ours);
    assert_eq!(publish(b"other"), Published::Taken);
    assert_eq!(tier.read("MANIFEST.json", 1 << 30).unwrap(), b"ours");

    let data = vec![3; 2 * PART_BYTES + 1];
    let mut upload = tier.create("shard").unwrap();
    proxy.lose_answer_to("partNumber=2");
    upload.write(&data).unwrap();
    proxy.lose_answer_to("POST /bucket/lossy/shard?uploadId=");
    upload.finish().unwrap();
    assert!(proxy.has_done_it());
    assert!(tier.read("shard", 1 << 30).unwrap() == data);
}

#[test]
fn a_dropped_upload_is_aborted() {
    let tier = tier("aborted");
    let mut upload = tier.create("shard").unwrap();
    upload.write(&vec![1; 2 * PART_BYTES]).unwrap();
    drop(upload);
    let requests = SERVERS.server.requests();
    assert!(requests.contains(&"DELETE /bucket/aborted/shard".to_owned()), "{requests:?}");
}

#[test]
fn a_small_file_is_one_request() {
    let tier = tier("small");
    let mut upload = tier.create("shard").unwrap();
    upload.write(&vec![1; PART_BYTES]).unwrap();
    upload.finish().unwrap();
    let requests = SERVERS.server.requests();
    let own: Vec<_> = requests.iter().filter(|line| line.contains("/small")).collect();
    assert_eq!(own, ["PUT /bucket/small/shard"]);
}

#[test]
fn a_store_saves_restores_and_removes() {
    let place = Place::new("run/checkpoints");
    let tier: Arc<dyn Tier> = Arc::new(place.tier());
    assert!(!checkpoint::holds_any(&*tier).unwrap());
    let store = Store::open(Arc::clone(&tier), &Identity::new("run-1", "workload-1")).unwrap();
    let claim = store.claim_attempt(1, &SingleRank).unwrap();
    let tensor = TensorBox::whole("weights", Dtype::U8, &[6 << 20]);
    let save = |step: u64| {
        let parts = [Part { tensor: tensor.clone(), data: &vec![step as u8; 6 << 20] }];
        let request = Save { step, claim, number: 0, state: step.into(), parent: None };
        store.save(&request, &parts, &SingleRank, &NoFailpoints).unwrap().checkpoint
    };
    let names = [save(10), save(20), save(30)];
    let damaged = format!("{}/d00/r00000-000.safetensors", names[2]);
    tier.replace(&damaged, b"torn").unwrap();

    let mut data = vec![0; 6 << 20];
    let mut parts = [PartMut { tensor: tensor.clone(), data: &mut data }];
    let restored = store.resume(&mut parts, &SingleRank).unwrap().unwrap();
    assert_eq!((restored.step, &restored.rejected[0].checkpoint), (20, &names[2]));
    assert!(data.iter().all(|byte| *byte == 20));

    let report = store.apply_retention(claim.attempt, 1, &NoFailpoints);
    assert_eq!((report.removed, report.warnings), (vec![names[0].clone()], Vec::new()));
    let left: Vec<String> = store.list().unwrap().into_iter().map(|listed| listed.name).collect();
    assert_eq!(left, [names[2].clone(), names[1].clone()]);
    assert!(store.verify(&names[1]).unwrap().problems.is_empty());
}

/// Options that reach the server through a proxy.
fn through(proxy: &Proxy) -> RemoteOptions {
    let mut settings = SERVERS.server.environment().map(|(name, value)| (name.to_owned(), value));
    settings[0].1 = format!("http://{}", proxy.address);
    RemoteOptions { settings: settings.to_vec(), ..Default::default() }
}

#[test]
fn a_flipped_bit_of_one_answer_is_read_again() {
    let server = &SERVERS.server;
    let (_, endpoint) = &server.environment()[0];
    let proxy = Proxy::start(endpoint.strip_prefix("http://").unwrap().parse().unwrap());
    let remote = Remote::open_with(&server.url("flipped"), through(&proxy)).unwrap();
    let tier: Arc<dyn Tier> = Arc::new(ObjectTier::new(remote));
    let store = Store::open(tier, &Identity::new("run-1", "workload-1")).unwrap();
    let claim = store.claim_attempt(1, &SingleRank).unwrap();
    let tensor = TensorBox::whole("weights", Dtype::U8, &[5000]);
    let parts = [Part { tensor: tensor.clone(), data: &[7; 5000] }];
    let request = Save { step: 10, claim, number: 0, state: 10.into(), parent: None };
    let name = store.save(&request, &parts, &SingleRank, &NoFailpoints).unwrap().checkpoint;
    for file in ["MANIFEST.json", "d00/r00000.idx.json", "d00/r00000-000.safetensors"] {
        proxy.plant(Fault::FlippedBit, &format!("GET /bucket/flipped/{name}/{file}"));
        let mut data = [0; 5000];
        let mut parts = [PartMut { tensor: tensor.clone(), data: &mut data }];
        let restored = store.resume(&mut parts, &SingleRank).unwrap().unwrap();
        assert!(proxy.has_done_it(), "{file}");
        assert_eq!((restored.step, restored.rejected.len()), (10, 0));
        let [warning] = &restored.warnings[..] else { panic!("{:?}", restored.warnings) };
        assert!(warning.contains(file) && warning.contains("read 2 was right"), "{warning}");
        assert_eq!(data, [7; 5000]);
    }
}
