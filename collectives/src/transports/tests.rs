//! Whole logs of four ranks on two nodes, from several versions of NCCL.

use super::*;

const FULL: &str = include_str!("fixtures/full-gdr-2.30.log");
const RECEIVES_WITHOUT: &str = include_str!("fixtures/receives-without-2.27.log");
const NODE_B_WITHOUT: &str = include_str!("fixtures/node-b-without-2.18.log");
const SOCKETS: &str = include_str!("fixtures/sockets-2.21.log");
const NOTHING: &str = include_str!("fixtures/nothing.log");
const SWITCHES: &str = include_str!("fixtures/switches-2.28.log");
const DAMAGED: &str = include_str!("fixtures/damaged.log");

/// Ranks of the group that the logs are about.
const ALL: [usize; 4] = [0, 1, 2, 3];

fn parsed(text: &str) -> Vec<Transport> {
    transports(Log::parse(text).ends())
}

fn pair(transports: &[Transport], from: usize, to: usize) -> &Transport {
    let is_pair = |pair: &&Transport| (pair.from, pair.to) == (from, Some(to));
    transports.iter().find(is_pair).expect("a pair of the log")
}

/// GPUDirect RDMA of the sender and the receiver.
fn gdr(pair: &Transport) -> Option<[bool; 2]> {
    Some([pair.send.as_ref()?.gdr, pair.receive.as_ref()?.gdr])
}

/// Rings of four ranks and a tree between the nodes, of two channels each.
#[track_caller]
fn assert_pairs(transports: &[Transport], local: &str, network: &str) {
    let pairs = transports.iter().map(|pair| (pair.from, pair.to, &*pair.name, pair.channels));
    let expected = [
        (0, Some(1), local, 2),
        (0, Some(2), network, 2),
        (1, Some(2), network, 2),
        (2, Some(0), network, 2),
        (2, Some(3), local, 2),
        (3, Some(0), network, 2),
    ];
    assert_eq!(pairs.collect::<Vec<_>>(), expected);
    assert_eq!(gdr(&transports[0]), None, "within a node");
    assert!(transports[0].has_gdr() && !transports[0].is_network(), "needs none");
}

fn without(transports: &[Transport]) -> Vec<(usize, Side)> {
    ends_without_gdr(transports).into_iter().map(|end| (end.rank, end.side)).collect()
}

#[test]
fn gdr_in_both_directions_of_every_channel() {
    let full = parsed(FULL);
    assert_pairs(&full, "P2P/CUMEM/read", "NET/IB");
    let network: Vec<_> = full.iter().filter(|pair| pair.is_network()).collect();
    assert!(network.len() == 4 && full.iter().all(Transport::has_gdr), "{full:?}");
    assert_eq!(network[1].send.as_ref().unwrap().nics, ["mlx5_1:1"]);
    assert_eq!(network[1].receive.as_ref().unwrap().nics, ["mlx5_0:1"]);
    assert!(ends_without_gdr(&full).is_empty());
}

#[test]
fn one_direction_without() {
    let found = parsed(RECEIVES_WITHOUT);
    assert_pairs(&found, "P2P/IPC", "NET/IB");
    for pair in found.iter().filter(|pair| pair.is_network()) {
        assert!(gdr(pair) == Some([true, false]) && !pair.has_gdr(), "{pair:?}");
    }
    assert_eq!(without(&found), [(0, Side::Receive), (2, Side::Receive)]);
}

#[test]
fn one_node_without() {
    let found = parsed(NODE_B_WITHOUT);
    assert_pairs(&found, "SHM/direct/direct", "NET/IB");
    assert_eq!(gdr(pair(&found, 1, 2)), Some([true, false]));
    assert_eq!(gdr(pair(&found, 3, 0)), Some([false, true]));
    assert_eq!(without(&found), [(2, Side::Send), (2, Side::Receive), (3, Side::Send)]);
}

#[test]
fn sockets_have_no_gdr() {
    let found = parsed(SOCKETS);
    assert_pairs(&found, "P2P/direct pointer", "NET/Socket");
    assert_eq!(gdr(pair(&found, 3, 0)), Some([false, false]));
    assert_eq!(pair(&found, 3, 0).send.as_ref().unwrap().nics, ["eth0"]);
    assert_eq!(ends_without_gdr(&found)[0].network, "NET/Socket");
}

#[test]
fn nothing_logged_is_no_evidence() {
    assert_eq!(parsed(NOTHING), []);
    assert_eq!(parsed(""), []);
}

/// A rank's log counts for its own end alone, and both ends are needed.
#[test]
fn ranks_that_log_nothing_have_no_gdr() {
    let own = |rank: usize| {
        let prefixes = ["node-a:4101", "node-a:4102", "node-b:2201", "node-b:2202"];
        let lines = FULL.lines().filter(|line| line.starts_with(prefixes[rank]));
        Log::parse(&lines.collect::<Vec<_>>().join("\n")).ends_of(rank, 0, &ALL)
    };
    assert_eq!(transports((0..4).flat_map(own)), parsed(FULL));
    let found = transports([0, 1, 3].into_iter().flat_map(own));
    assert_eq!(gdr(pair(&found, 1, 2)), Some([true, false]));
    assert_eq!(gdr(pair(&found, 2, 0)), Some([false, true]));
    assert!(pair(&found, 1, 2).receive.as_ref().unwrap().nics.is_empty());
    let whole = Log::parse(FULL);
    let parts: Vec<_> = (0..4).flat_map(|rank| whole.ends_of(rank, 0, &ALL)).collect();
    assert_eq!(transports(parts), parsed(FULL), "all ranks read the same file");
    assert!(
        whole.ends_of(1, 0, &ALL).iter().all(|end| end.rank() == 1),
        "of which each takes its own"
    );
}

/// The ranks of a line are those of its group, which are others in the world.
#[test]
fn a_section_is_about_the_ranks_of_its_group() {
    let line =
        |via: &str| format!("a:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via {via}");
    let mut log = Log::default();
    log.add("a:7:8 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB e:1");
    log.add(&line("P2P/IPC").replace(" [send]", ""));
    log.begin_section();
    log.add(&line("NET/IB/0/GDRDMA"));
    log.begin_section();
    assert_eq!([0, 1, 2].map(|section| log.has_connections(section)), [true, true, false]);
    let ends = [log.ends_of(4, 0, &[4, 5]), log.ends_of(4, 1, &[4, 0])].concat();
    let found = transports(ends);
    let pairs: Vec<_> = found.iter().map(|pair| (pair.from, pair.to, &*pair.name)).collect();
    assert_eq!(pairs, [(4, Some(0), "NET/IB"), (4, Some(5), "P2P/IPC")]);
    assert_eq!(found[0].send.as_ref().unwrap().nics, ["mlx5_0:1"], "named in another section");
    assert_eq!(log.ends_of(5, 0, &[4, 5]), [], "the other end");
    assert_eq!(log.ends_of(4, 0, &[4]), [], "no such rank in the group");
}

/// One channel of one end decides.
#[test]
fn a_channel_that_lacks_gdr_or_is_missing_counts() {
    let line = "Channel 01/0 : 1[1] -> 2[0] [receive] via NET/IB/0/GDRDMA(PCI)";
    assert!(FULL.contains(line));
    for changed in [line.replace("/GDRDMA(PCI)", ""), "Connected".to_owned()] {
        let found = parsed(&FULL.replace(line, &changed));
        assert_eq!(gdr(pair(&found, 1, 2)), Some([true, false]), "{changed}");
        assert_eq!(without(&found), [(2, Side::Receive)]);
    }
    let twice = format!("{FULL}x:1:1 [0] NCCL INFO {}\n", line.replace("/GDRDMA(PCI)", ""));
    assert_eq!(gdr(pair(&parsed(&twice), 1, 2)), Some([true, false]), "logged twice");
}

#[test]
fn damaged_lines_are_no_evidence() {
    let found = parsed(DAMAGED);
    let pairs: Vec<_> =
        found.iter().map(|pair| (pair.from, pair.to, &*pair.name, pair.channels)).collect();
    let expected = [
        (0, Some(1), "SHM/CE/direct", 1),
        (1, Some(2), "NET/IB", 2),
        (2, Some(3), "P2P/CUMEM/CE + P2P/indirect", 2),
        (3, Some(0), "NET/IB", 2),
    ];
    assert_eq!(pairs, expected);
    assert_eq!(gdr(&found[1]), Some([false, true]), "the sender's second line was interrupted");
    assert_eq!(gdr(&found[3]), Some([true, false]), "the receiver's second line is cut off");
    let ranks = "NCCL INFO Channel 00/0 : 0[0] -> 1[1]";
    let line = format!("{ranks} [send] via NET/IB/3/GDRb:1:2 [0] {ranks} [receive] via NET/IB/4");
    let both = &parsed(&line)[0];
    let nics = [&both.send, &both.receive].map(|end| end.as_ref().unwrap().nics.join(" "));
    assert_eq!(nics, ["3", "4"], "two messages in a line");
}

/// Rings are not connected where all sums are in switches.
#[test]
fn sums_in_a_switch_have_ends_of_one_rank() {
    let log = Log::parse(SWITCHES);
    let [first, second] = [0, 1].map(|rank| transports(log.ends_of(rank, 0, &ALL)));
    let pairs: Vec<_> = first.iter().map(|pair| (pair.from, pair.to, &*pair.name)).collect();
    assert_eq!(pairs, [(0, None, "COLLNET/SHARP + NVLS")]);
    assert_eq!((first[0].channels, gdr(&first[0])), (2, Some([true, false])));
    assert_eq!(first[0].send.as_ref().unwrap().nics, ["mlx5_0:1"]);
    assert_eq!(without(&first), [(0, Side::Receive)]);
    let pairs: Vec<_> = second.iter().map(|pair| (pair.from, pair.to, &*pair.name)).collect();
    assert_eq!(pairs, [(1, None, "NVLS")]);
    assert_eq!((second[0].channels, gdr(&second[0]), second[0].has_gdr()), (0, None, true));
}

#[test]
fn forms_of_a_line() {
    let form = |text: &str| Connection::parse(text);
    let network = |path: &str| {
        let found = form(&format!("Channel 03/1 : 12[4] -> 9[1] [send] via {path}"))?;
        assert_eq!((found.from, found.to, found.channel), (12, Some(9), Channel(3, 1)));
        Some((found.name, found.nic, found.has_gdr))
    };
    let named = |name: &str, nic, has_gdr| Some((name.to_owned(), nic, has_gdr));
    assert_eq!(network("NET/IB/0"), named("NET/IB", Some(0), false));
    assert_eq!(network("NET/IB/2(7)/GDRDMA(PCI)/Shared"), named("NET/IB", Some(2), true));
    assert_eq!(network("NET/AWS Libfabric/11/GDRDMA"), named("NET/AWS Libfabric", Some(11), true));
    assert_eq!(network("NET/IBext_v8/0/Shared"), named("NET/IBext_v8", Some(0), false));
    for damaged in ["NET/IB", "NET/IB/", "NET/IB/0(/GDRDMA", "NET/IB/x/GDRDMA"] {
        assert_eq!(network(damaged), named("NET/IB", None, false), "{damaged}");
    }
    for damaged in ["NET/IB/0/GDR", "NET/IB/0/GDRDMA/Sha", "NET/IB/0/GDRDMAnode-a:1:2 [0] "] {
        assert_eq!(network(damaged), named("NET/IB", Some(0), false), "{damaged}");
    }
    for other in ["NET/", "NET/node-a:1:2", "P2P", "P2P/node-a:1:2", "NVB/0/GDRDMA"] {
        assert_eq!(network(other), None, "{other}");
    }
    for other in [
        "Channel 00/0 : 0[0] -> 1[1] via NET/IB/0/GDRDMA",
        "Channel 00/0 : 0[0] -> 1 [send] via NET/IB/0",
        "Channel 00/0 : 0[] -> 1[1] via SHM/direct",
        "Channel x : 0[0] -> 1[1] via SHM/direct",
        "CollNet 00/0 : 1 via COLLNET/SHARP/0/GDRDMA",
        "CollNet 00/0 : 1[1] [send] via COLLNET/SHARP/0/GDRDMA",
        "Other 00/0 : 0[0] -> 1[1] via SHM/direct",
        "Channel 00/02 :    0   1   2   3",
    ] {
        assert_eq!(form(other), None, "{other}");
    }
}
