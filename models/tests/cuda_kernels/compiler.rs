//! Calls of the compiler by the program: their errors, and the cache of the results.

use device::cuda::nvrtc::{self, Source};
use device::cuda::{Error, cubin_cache};

use crate::sources::{self, File};

const GOOD: Source<'_> = Source {
    name: "good.cu",
    text: "#include \"value.cuh\"\nextern \"C\" __global__ void k(float* x) { *x = VALUE + ADD; }",
    headers: &[("value.cuh", "#define VALUE 2")],
    options: &["-DADD=3"],
};

/// A mistake in the text, a header or an option that is missing, an unknown option, and a byte that
/// ends strings: each is an error that names the file. An unknown architecture has one of its own.
pub(crate) fn says_what_is_wrong() {
    assert!(!nvrtc::compile(&GOOD, "sm_90a").unwrap().cubin.is_empty());

    let wrong = Source { text: "\n__global__ void k() { nonsense; }", ..GOOD };
    let error = nvrtc::compile(&wrong, "sm_90a").unwrap_err();
    let Error::Compilation { source_name, architecture, log } = &error else { panic!("{error}") };
    assert_eq!([source_name.as_str(), architecture], ["good.cu", "sm_90a"]);
    assert!(log.contains("good.cu(2)") && log.contains("nonsense"), "{log}");

    let refused = [
        nvrtc::compile(&Source { headers: &[], ..GOOD }, "sm_90a"),
        nvrtc::compile(&Source { options: &[], ..GOOD }, "sm_90a"),
        nvrtc::compile(&Source { options: &["-DADD=3", "--no-such-option"], ..GOOD }, "sm_90a"),
        nvrtc::compile(&Source { options: &["-DADD=3", "-DX=\0"], ..GOOD }, "sm_90a"),
        nvrtc::compile(&Source { text: "\0", ..GOOD }, "sm_90a"),
    ];
    let parts = ["value.cuh", "ADD", "--no-such-option", "zero byte", "zero byte"];
    for (result, part) in refused.into_iter().zip(parts) {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("good.cu") && text.contains(part), "{part}: {text}");
    }

    let error = nvrtc::compile(&GOOD, "sm_999").unwrap_err();
    assert!(matches!(error, Error::UnknownArchitecture { .. }), "{error}");
    assert!(error.to_string().contains("does not compile for sm_999"), "{error}");
}

/// The program warns of complaints, and compiles without the gate's options.
pub(crate) fn complains_of_a_missing_fence() {
    const FENCE: &str = "wgmma.fence.sync.aligned;";
    let File { name, text } =
        sources::all().into_iter().find(|file| sources::uses_wgmma(&file.name)).unwrap();
    let headers = sources::headers();
    assert!(headers.iter().any(|header| header.text.contains(FENCE)));
    let unfenced: Vec<_> =
        headers.iter().map(|header| (&*header.name, header.text.replace(FENCE, ""))).collect();
    let headers: Vec<_> = unfenced.iter().map(|(name, text)| (*name, &**text)).collect();
    let options = sources::variants(&name)[0];
    let source = Source { name: &name, text: &text, headers: &headers, options };
    let compiled = nvrtc::compile(&source, "sm_90a").unwrap();
    assert!(compiled.complaints().any(|line| line.contains("(C75")), "{}", compiled.log);
}

/// The folder of the cache is this process's own.
pub(crate) fn is_asked_once() {
    let folder = std::env::var_os("YARDSTICK_CACHE_DIR").unwrap();
    let files = || std::fs::read_dir(std::path::Path::new(&folder).join("cubin")).unwrap().count();
    let first = cubin_cache::get_or_compile(&GOOD, "sm_90a").unwrap();
    assert_eq!(first, nvrtc::compile(&GOOD, "sm_90a").unwrap().cubin);
    assert_eq!(files(), 1);
    assert_eq!(cubin_cache::get_or_compile(&GOOD, "sm_90a").unwrap(), first);
    assert_eq!(files(), 1);
    assert_ne!(cubin_cache::get_or_compile(&GOOD, "sm_80").unwrap(), first);
    assert_eq!(files(), 2);
}
