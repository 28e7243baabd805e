//! Whole pages in memory, by number. A counter of each page says how often queries wanted it, and a page replaces only a
//! page that was wanted less often: a page read once does not push out one that many queries share. (TinyLFU admission:
//! Einziger, Friedman, Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", 2017, with exact counters, since page
//! numbers are dense.) The counters are halved from time to time, so that the cache follows queries that change.
//!
//! If all pages have room, nothing is counted, pinned or evicted.
const std = @import("std");
const base = @import("base");
const record_cache = @import("record_cache.zig");
const Cache = record_cache.Cache;
const Pin = record_cache.Pin;
const Atomic = std.atomic.Value;
const assert = std.debug.assert;

pub const Options = struct {
    page_count: u32,
    page_size: u32,
    /// For slots, their states, the mapping and the counters.
    budget_bytes: usize,

    /// The number of pages that fit into the budget.
    pub fn pages(self: Options) u32 {
        return record_cache.slots_in(self.of_cache());
    }

    /// The size of a cache that holds all pages.
    pub fn bytes_of_all(self: Options) u64 {
        return record_cache.bytes_of(self.of_cache()) + self.page_count;
    }

    fn of_cache(self: Options) record_cache.Options {
        return .{ .vertex_count = self.page_count, .slot_bytes = self.page_size, .budget_bytes = self.budget_bytes -| self.page_count };
    }
};

/// The counters are halved once queries have wanted this many pages per cached page.
const uses_per_page = 10;
/// Cached pages that one insertion compares its page with, and pages among which it looks for them.
const compared = 8;
const looked_at = 512;

pub const PageCache = struct {
    cache: Cache,
    page_count: u32,
    holds_all: bool,
    /// The number of requests for each page; empty where all pages have room.
    heat: []Atomic(u8),
    /// Pages wanted since the counters were halved.
    uses: Atomic(u64) align(std.atomic.cache_line) = .init(0),
    /// The page that the next insertion looks at first.
    hand: Atomic(u32) = .init(0),

    pub fn init(allocator: std.mem.Allocator, options: Options) error{OutOfMemory}!PageCache {
        var cache = try Cache.init(allocator, options.of_cache());
        errdefer cache.deinit();
        const holds_all = cache.holds_all();
        const heat = try base.alloc_untouched(allocator, Atomic(u8), if (holds_all) 0 else options.page_count);
        @memset(heat, .init(0));
        return .{ .cache = cache, .page_count = options.page_count, .holds_all = holds_all, .heat = heat };
    }

    /// The caller has released all pages.
    pub fn deinit(self: *PageCache) void {
        base.free_untouched(self.cache.allocator, self.heat);
        self.cache.deinit();
    }

    pub fn memory_bytes(self: *const PageCache) usize {
        return self.cache.memory_bytes() + self.heat.len;
    }

    /// Whether the cache contains every page, and evicts none.
    pub fn is_complete(self: *const PageCache) bool {
        return self.holds_all and self.cache.free_count.load(.monotonic) == 0;
    }

    pub const ListContains = struct { bytes: []const u8, pin: ?Pin };

    /// The page if it is cached. It stays until `release`.
    pub inline fn find(self: *PageCache, page: u32) ?ListContains {
        if (self.holds_all) return .{ .bytes = self.cache.look(page) orelse return null, .pin = null };
        self.count(page);
        const pin = self.cache.peek(page) orelse return null;
        return .{ .bytes = pin.bytes(), .pin = pin };
    }

    pub inline fn release(self: *PageCache, held: ListContains) void {
        if (held.pin) |pin| self.cache.release(pin);
    }

    /// Keeps a page that was read: in a free slot, or in that of a page that was wanted less often.
    pub fn try_insert(self: *PageCache, page: u32, bytes: []const u8) bool {
        if (self.cache.contains(page)) return false;
        const needs_room = !self.holds_all and self.cache.free_count.load(.monotonic) == 0;
        if (needs_room and !self.make_room(page)) return false;
        return self.cache.try_insert(page, bytes);
    }

    /// Initial counters, in any unit: the expected number of uses of each page.
    pub fn expect(self: *PageCache, expected: []const u32) void {
        if (self.holds_all) return;
        assert(expected.len == self.heat.len);
        var sum: u64 = 0;
        for (expected) |one| sum += one;
        // Scaled to the mean of one period.
        const mean = @max(1, sum / expected.len);
        for (self.heat, expected) |*heat, one| heat.store(@intCast(@min(heat_max, @as(u64, one) * uses_per_page / mean)), .monotonic);
    }

    const heat_max = std.math.maxInt(u8);

    fn count(self: *PageCache, page: u32) void {
        const heat = &self.heat[page];
        const before = heat.load(.monotonic);
        // A concurrent increment may be lost; the counter is an estimate.
        if (before < heat_max) heat.store(before + 1, .monotonic);
        if (self.uses.fetchAdd(1, .monotonic) + 1 != uses_per_page * self.heat.len) return;
        self.uses.store(0, .monotonic);
        for (self.heat) |*one| one.store(one.load(.monotonic) / 2, .monotonic);
    }

    /// Evicts the coldest of a few pages, if it is colder than this one.
    fn make_room(self: *PageCache, page: u32) bool {
        const page_count = self.heat.len;
        var least = self.heat[page].load(.monotonic);
        var coldest: ?u32 = null;
        var left: u32 = compared;
        const start = self.hand.load(.monotonic);
        for (0..@min(looked_at, page_count)) |i| {
            const other: u32 = @intCast((@as(u64, start) + i) % page_count);
            if (!self.cache.contains(other)) continue;
            const heat = self.heat[other].load(.monotonic);
            if (heat < least) {
                least = heat;
                coldest = other;
            }
            left -= 1;
            if (left > 0) continue;
            self.hand.store(@intCast((@as(u64, other) + 1) % page_count), .monotonic);
            break;
        } else self.hand.store(@intCast((@as(u64, start) + looked_at) % page_count), .monotonic);
        return self.cache.try_evict(coldest orelse return false);
    }
};

const testing = std.testing;
const page_bytes = 64;

fn options_of(page_count: u32, slots: u32) Options {
    return .{ .page_count = page_count, .page_size = page_bytes, .budget_bytes = page_count * 5 + 64 + 4096 + slots * (page_bytes + 16) };
}

fn page_of(page: u32) [page_bytes]u8 {
    return @splat(@truncate(page *% 37 +% 11));
}

/// As a query does: a hit, or else a read that offers the page.
fn want(cache: *PageCache, page: u32) !bool {
    const held = cache.find(page) orelse {
        _ = cache.try_insert(page, &page_of(page));
        return false;
    };
    defer cache.release(held);
    try testing.expectEqualSlices(u8, &page_of(page), held.bytes);
    return true;
}

test "the budget yields the pages that it has room for" {
    for ([_]u32{ 0, 1, 7, 40 }) |slots| {
        try testing.expectEqual(slots, options_of(40, slots).pages());
        var cache: PageCache = try .init(testing.allocator, options_of(40, slots));
        defer cache.deinit();
        try testing.expectEqual(slots == 40, cache.holds_all);
        try testing.expect(cache.memory_bytes() <= options_of(40, slots).budget_bytes);
    }
}

test "pages that many queries want stay while others pass" {
    var cache: PageCache = try .init(testing.allocator, options_of(1_000, 50));
    defer cache.deinit();
    var prng = base.Prng.init(testing.random_seed);
    errdefer std.debug.print("seed={d}\n", .{testing.random_seed});
    var hits: u32 = 0;
    for (0..40_000) |i| {
        const hot = i % 2 == 0;
        const page: u32 = @intCast(if (hot) prng.below(40) else prng.below(1_000));
        const hit = try want(&cache, page);
        if (hot and i >= 20_000) hits += @intFromBool(hit);
    }
    try testing.expect(hits > 9_500);
}

test "expected uses decide until queries were counted" {
    var cache: PageCache = try .init(testing.allocator, options_of(100, 20));
    defer cache.deinit();
    var expected: [100]u32 = undefined;
    for (&expected, 0..) |*one, page| one.* = if (page < 20) 90 else 10;
    cache.expect(&expected);
    for (0..20) |page| try testing.expect(cache.try_insert(@intCast(page), &page_of(@intCast(page))));
    for (20..100) |page| try testing.expect(!try want(&cache, @intCast(page)));
    for (0..20) |page| try testing.expect(cache.cache.contains(@intCast(page)));
    // Other queries: pages 60 to 79 alone.
    for (0..20_000) |i| _ = try want(&cache, @intCast(60 + i % 20));
    for (60..80) |page| try testing.expect(cache.cache.contains(@intCast(page)));
}

test "several threads at once see whole pages" {
    const Shared = struct {
        cache: PageCache,
        failed: std.atomic.Value(bool) = .init(false),

        fn work(shared: *@This(), seed: u64) void {
            var prng = base.Prng.init(seed);
            for (0..6_000) |_| {
                const page: u32 = @intCast(@min(prng.below(60), prng.below(60)));
                _ = want(&shared.cache, page) catch shared.failed.store(true, .monotonic);
            }
        }
    };
    for ([_]u32{ 1, 4, 30, 60 }) |slots| {
        var shared: Shared = .{ .cache = try .init(testing.allocator, options_of(60, slots)) };
        defer shared.cache.deinit();
        var threads: [4]std.Thread = undefined;
        for (&threads, 0..) |*thread, i| thread.* = try std.Thread.spawn(.{}, Shared.work, .{ &shared, testing.random_seed +% i });
        for (threads) |thread| thread.join();
        try testing.expect(!shared.failed.load(.monotonic));
        try @import("model_test.zig").verify(&shared.cache.cache);
    }
}
