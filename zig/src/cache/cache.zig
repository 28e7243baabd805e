//! The cache room: records in memory between the search and the device. It answers hit or miss; it never reads, so that a
//! test can drive it with plain calls.
const page_cache = @import("page_cache.zig");
const record_cache = @import("record_cache.zig");

pub const Cache = record_cache.Cache;
pub const Options = record_cache.Options;
pub const Pin = record_cache.Pin;
pub const PageCache = page_cache.PageCache;
pub const PageCacheOptions = page_cache.Options;

test {
    _ = page_cache;
    _ = record_cache;
    _ = @import("model_test.zig");
}
