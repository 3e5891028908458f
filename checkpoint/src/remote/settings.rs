//! Settings of object stores from environment variables, checked before a client is made of them:
//! object_store panics where one of them is no valid part of a request.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::str::FromStr;

use hyper_util::client::proxy::matcher::Matcher;
use object_store::ClientConfigKey;
use reqwest::Url;

/// Environment variables, below those that are given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Variables<'a> {
    given: &'a [(String, String)],
}

impl<'a> Variables<'a> {
    pub(super) fn new(given: &'a [(String, String)]) -> Self {
        Self { given }
    }

    /// The value without the white space around it; `None` where it is not set, or empty.
    ///
    /// # Errors
    /// When it is not text.
    pub(super) fn get(&self, name: &str) -> io::Result<Option<String>> {
        let given = self.given.iter().rfind(|(given, _)| given == name);
        let value = match given {
            Some((_, value)) => value.clone(),
            None => text(name, std::env::var_os(name).unwrap_or_default())?,
        };
        Ok(Some(value.trim().to_owned()).filter(|value| !value.is_empty()))
    }

    /// The settings that variables make whose names start or, without `_` at its end, are one of
    /// these; of two for one key the last counts.
    ///
    /// # Errors
    /// When a value is not what it has to be.
    pub(super) fn settings<K: Key>(&self, prefixes: &[&str]) -> io::Result<Vec<Setting<K>>> {
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            let is_given = self.given.iter().any(|(given, _)| *given == name);
            (!is_given).then_some((name, value))
        });
        let mut variables: Vec<_> = environment.collect();
        variables.sort_unstable();
        variables.extend(self.given.iter().map(|(name, value)| (name.clone(), value.into())));
        let is_meant = |name: &str| {
            prefixes
                .iter()
                .any(|prefix| name == *prefix || prefix.ends_with('_') && name.starts_with(prefix))
        };
        let meant = variables.into_iter().filter(|(name, _)| is_meant(name));
        let settings = meant.map(|(name, value)| Setting::of_variable(&name, value));
        settings.filter_map(Result::transpose).collect()
    }
}

fn text(name: &str, value: OsString) -> io::Result<String> {
    value.into_string().map_err(|_| invalid(name, "expected text, found bytes that are not UTF-8"))
}

/// A setting, and the place to correct it.
#[derive(Debug, Clone)]
pub(super) struct Setting<K> {
    pub(super) key: K,
    pub(super) value: String,
    /// Name of the environment variable, or setting and file.
    pub(super) origin: String,
}

/// Kind of a setting's value. Errors show the host of a URL and short names only: a secret may be
/// where something else is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// `http://` or `https://` with a host, to which paths are added.
    Endpoint,
    /// `http://` or `https://` with a host, used as it is.
    Url,
    /// [`Kind::Url`], perhaps with a user, or without scheme.
    Proxy,
    /// A path of a URL.
    UrlPath,
    /// Part of a host name, as a region is.
    Name,
    /// Characters that a header may have.
    Text,
    /// [`Kind::Text`] that nobody else may read.
    Secret,
    /// JSON or PEM: several lines that nobody else may read.
    Document,
    /// The path of a file with a secret.
    File,
    /// [`Kind::File`] whose content is sent as a header, of which object_store gets none:
    /// [`Key::token_file`].
    HeaderFile,
}

impl Kind {
    fn is_secret(self) -> bool {
        matches!(self, Self::Secret | Self::Document | Self::File | Self::HeaderFile)
    }
}

/// A key of object_store's configuration.
pub(super) trait Key: FromStr + Copy {
    /// Returns the kind of its value; `None` where this crate makes the setting, as with timeouts.
    fn kind(self) -> Option<Kind>;

    /// Returns the file whose content is the `Authorization` of a request.
    fn token_file(_settings: &[Setting<Self>]) -> Option<TokenFile> {
        None
    }
}

/// A file with a token, and the URL for which it is read anew at each request.
#[derive(Debug, Clone)]
pub(super) struct TokenFile {
    pub(super) url: String,
    pub(super) path: String,
    /// Name of the environment variable with the path.
    pub(super) origin: String,
}

impl TokenFile {
    /// Returns the file's content, which may have changed since it was checked.
    ///
    /// # Errors
    /// When the content can be no header.
    pub(super) fn read(&self) -> io::Result<String> {
        let origin = format!("{} ({})", self.path, self.origin);
        let content = std::fs::read_to_string(&self.path);
        let content = content.map_err(|error| invalid(&origin, &error.to_string()))?;
        require_header(&content, &origin)?;
        Ok(content)
    }
}

/// The value of the first of these settings that is there; of two for one key the last counts.
pub(super) fn value<'a, K: Key + PartialEq>(
    settings: &'a [Setting<K>],
    keys: &[K],
) -> Option<&'a str> {
    keys.iter().find_map(|key| {
        let set = settings.iter().rfind(|setting| setting.key == *key)?;
        Some(set.value.as_str())
    })
}

/// The kind of a setting of the HTTP client.
pub(super) fn client_kind(key: ClientConfigKey) -> Option<Kind> {
    use ClientConfigKey::{
        AllowHttp, AllowInvalidCertificates, NoSystemCertificates, ProxyCaCertificate,
        ProxyExcludes, ProxyUrl,
    };
    match key {
        ProxyUrl => Some(Kind::Proxy),
        ProxyCaCertificate => Some(Kind::Document),
        AllowHttp | AllowInvalidCertificates | NoSystemCertificates | ProxyExcludes => {
            Some(Kind::Text)
        }
        _ => None,
    }
}

impl<K: Key> Setting<K> {
    /// The setting that a variable makes; `None` where it makes none, or is empty.
    ///
    /// # Errors
    /// When the value is not what it has to be.
    pub(super) fn of_variable(name: &str, value: OsString) -> io::Result<Option<Self>> {
        let Ok(key) = name.to_ascii_lowercase().parse() else { return Ok(None) };
        let value = text(name, value)?;
        Self::new(key, &value, name.to_owned())
    }

    /// A setting without the white space around it, which secrets of Kubernetes often have.
    ///
    /// # Errors
    /// When the value is not what it has to be.
    pub(super) fn new(key: K, value: &str, origin: String) -> io::Result<Option<Self>> {
        let Some(kind) = key.kind() else { return Ok(None) };
        let value = checked(kind, value.trim(), &origin)?;
        Ok((!value.is_empty()).then_some(Self { key, value, origin }))
    }

    /// The error of a store about this setting, without the value if it is a secret.
    pub(super) fn blame(&self, error: &io::Error) -> io::Error {
        if self.key.kind().is_some_and(Kind::is_secret) || !may_be_shown(&self.value) {
            return invalid(&self.origin, "not what the store expects there");
        }
        invalid(&self.origin, &error.to_string())
    }
}

/// Error about a setting, with its origin.
pub(super) fn invalid(origin: &str, what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, format!("{origin}: {what}"))
}

/// Checks the environment's proxy for requests to this URL, if there is one: the HTTP client takes
/// no notice of one that it cannot use.
///
/// # Errors
/// When it is no URL, or one of another kind than `http` and `https`.
pub fn check_proxy(url: &str) -> io::Result<()> {
    let own = if url.starts_with("https:") { "HTTPS_PROXY" } else { "HTTP_PROXY" };
    let Some((name, value)) = named_proxy(own)?.or(named_proxy("ALL_PROXY")?) else {
        return Ok(());
    };
    if is_excluded(url)? {
        return Ok(());
    }
    if value.trim() != value {
        return Err(invalid(&name, "expected a URL, found white space around it"));
    }
    checked(Kind::Proxy, &value, &name).map(drop)
}

/// Returns whether `NO_PROXY` names the host of this URL.
fn is_excluded(url: &str) -> io::Result<bool> {
    let (_, excluded) = named_proxy("NO_PROXY")?.unwrap_or_default();
    let proxies = Matcher::builder().all("http://proxy").no(excluded).build();
    Ok(url.parse().is_ok_and(|url| proxies.intercept(&url).is_none()))
}

/// A variable of proxies and its value, in the order of the client: an empty one in upper case
/// hides that in lower case.
fn named_proxy(name: &str) -> io::Result<Option<(String, String)>> {
    for name in [name.to_owned(), name.to_ascii_lowercase()] {
        if let Some(value) = std::env::var_os(&name) {
            let value = text(&name, value)?;
            return Ok((!value.is_empty()).then_some((name, value)));
        }
    }
    Ok(None)
}

fn checked(kind: Kind, value: &str, origin: &str) -> io::Result<String> {
    let is_valid = match kind {
        Kind::Endpoint | Kind::Url if value.is_empty() => {
            return Err(invalid(origin, "expected a URL, found nothing; unset it for the default"));
        }
        Kind::Endpoint => return endpoint(value, origin),
        Kind::Url => return url(value, origin),
        _ if value.is_empty() => true,
        Kind::Proxy if value.contains("://") => return url(value, origin),
        Kind::Proxy => return url(&format!("http://{value}"), origin),
        Kind::File | Kind::HeaderFile => {
            check_file(kind, value, origin)?;
            true
        }
        Kind::UrlPath => {
            value.starts_with('/') && value.bytes().all(|byte| byte.is_ascii_graphic())
        }
        Kind::Name => is_name(value),
        Kind::Text | Kind::Secret => is_printable(value),
        Kind::Document => true,
    };
    if is_valid {
        return Ok(value.to_owned());
    }
    let expected = match kind {
        Kind::UrlPath => "a path of a URL",
        Kind::Name if may_be_shown(value) => {
            let what = format!("expected letters, digits, -, _ and ., found {value:?}");
            return Err(invalid(origin, &what));
        }
        Kind::Name => "letters, digits, -, _ and .",
        _ => "printable ASCII characters",
    };
    Err(invalid(origin, &format!("expected {expected}, found others")))
}

fn is_printable(text: &str) -> bool {
    text.chars().all(|character| matches!(character, ' '..='~'))
}

/// Returns whether a value is no secret, wherever it is: short, and no part of one of several
/// fields.
pub(super) fn may_be_shown(value: &str) -> bool {
    value.len() <= 32 && !value.contains([';', '=', '?', '@', '{'])
}

/// Checks that a file can be read, and that a request can be made of it. The value is not shown: it
/// may be what should be in the file.
fn check_file(kind: Kind, path: &str, origin: &str) -> io::Result<()> {
    let content = std::fs::read_to_string(path).map_err(|error| {
        invalid(origin, &format!("expected the path of a file that can be read ({error})"))
    })?;
    if kind == Kind::HeaderFile { require_header(&content, origin) } else { Ok(()) }
}

fn require_header(content: &str, origin: &str) -> io::Result<()> {
    if is_printable(content) {
        return Ok(());
    }
    let what = "expected a file of printable ASCII characters, without a line break at its end, \
                found others";
    Err(invalid(origin, what))
}

/// Returns whether a text can be part of a host name, or a segment of a path.
pub(super) fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// A URL without a slash at its end.
fn endpoint(text: &str, origin: &str) -> io::Result<String> {
    let parsed = parse(text, origin)?;
    if parsed.query().is_some() || parsed.fragment().is_some() {
        let found = shown(&parsed);
        let what = format!("{EXPECTED_URL}, found more than a path behind {found}");
        return Err(invalid(origin, &what));
    }
    Ok(parsed.as_str().trim_end_matches('/').to_owned())
}

/// Returns a URL unchanged, except for characters that requests have in another form.
fn url(text: &str, origin: &str) -> io::Result<String> {
    let parsed = parse(text, origin)?;
    let is_same = parsed.as_str().strip_suffix('/') == Some(text);
    Ok(if is_same { text } else { parsed.as_str() }.to_owned())
}

const EXPECTED_URL: &str = "expected a URL, as in http://HOST:PORT";

fn parse(text: &str, origin: &str) -> io::Result<Url> {
    let parsed = Url::parse(text).map_err(|error| {
        invalid(origin, &format!("{EXPECTED_URL}, found one that is not valid ({error})"))
    })?;
    let has_space = text.contains(|character: char| character.is_whitespace());
    if !matches!(parsed.scheme(), "http" | "https") || has_space {
        return Err(invalid(origin, &format!("{EXPECTED_URL}, found {}", shown(&parsed))));
    }
    Ok(parsed)
}

/// The parts of a URL that are no secret.
fn shown(url: &Url) -> String {
    match url.host_str() {
        Some(host) => format!("\"{}://{host}\"", url.scheme()),
        None => "one without a host".to_owned(),
    }
}
