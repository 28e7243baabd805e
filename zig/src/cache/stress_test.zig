//! Many threads on a tiny cache: no reader may ever see a slot being reused. Run it under ThreadSanitizer too
//! (`zig build tsan-cache`), which sees what luck hides.
const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const cache_module = @import("record_cache.zig");
const Cache = cache_module.Cache;
const Pin = cache_module.Pin;
const model = @import("model_test.zig");
const testing = std.testing;

const vertex_count = 40;
const thread_count = 4;
const steps = 6_000;

const Shared = struct {
    cache: Cache,
    failed: std.atomic.Value(bool) = .init(false),
    hits: std.atomic.Value(u64) = .init(0),
    inserts: std.atomic.Value(u64) = .init(0),
};

fn work(shared: *Shared, seed: u64) void {
    run(shared, seed) catch |err| {
        std.debug.print("cache stress: {t} seed={d}\n", .{ err, seed });
        shared.failed.store(true, .release);
    };
}

/// Holds up to three pins at once while it looks, inserts and sweeps.
fn run(shared: *Shared, seed: u64) !void {
    const cache = &shared.cache;
    var prng = base.Prng.init(seed);
    var held: [3]?struct { pin: Pin, vertex: u32 } = @splat(null);
    defer for (held) |entry| if (entry) |h| cache.release(h.pin);
    var buffer: [model.record_max]u8 = undefined;
    var hits: u64 = 0;
    var inserts: u64 = 0;
    for (0..steps) |_| {
        // Skewed, so that threads meet at the same vertices.
        const vertex: u32 = @intCast(@min(prng.below(vertex_count), prng.below(vertex_count)));
        const place = prng.below(held.len);
        if (held[place]) |h| {
            try model.expect_record(h.pin, h.vertex);
            cache.release(h.pin);
            held[place] = null;
        }
        if (prng.below(8) == 0) _ = cache.sweep(@intCast(prng.below(3)));
        if (cache.peek(vertex)) |pin| {
            hits += 1;
            try model.expect_record(pin, vertex);
            held[place] = .{ .pin = pin, .vertex = vertex };
        } else if (prng.below(8) > 0) inserts += @intFromBool(cache.try_insert(vertex, model.record_of(vertex, &buffer)));
        if (prng.below(64) == 0) std.Thread.yield() catch {};
        for (held) |entry| if (entry) |h| try model.expect_record(h.pin, h.vertex);
    }
    _ = shared.hits.fetchAdd(hits, .acq_rel);
    _ = shared.inserts.fetchAdd(inserts, .acq_rel);
}

test "no reader of several threads sees a slot being reused" {
    const seed: u64 = @as(u64, testing.random_seed) *% 100;
    for ([_]usize{ 1, 3, 8, 20 }) |slots| {
        var shared: Shared = .{ .cache = try Cache.init(testing.allocator, model.options(vertex_count, slots)) };
        defer shared.cache.deinit();
        var threads: [thread_count]std.Thread = undefined;
        for (&threads, 0..) |*thread, i| {
            thread.* = try std.Thread.spawn(.{}, work, .{ &shared, seed +% i });
        }
        for (threads) |thread| thread.join();
        try testing.expect(!shared.failed.load(.acquire));
        try testing.expect(shared.hits.load(.acquire) > 0);
        try model.verify(&shared.cache);
        // More than there is room for, so some were evicted.
        try testing.expect(shared.inserts.load(.acquire) > slots);
    }
}

/// ThreadSanitizer needs fewer, and takes longer for each.
const churn_steps = if (builtin.sanitize_thread) 8_000 else 60_000;

fn churn(shared: *Shared, seed: u64) void {
    var prng = base.Prng.init(seed);
    var buffer: [model.record_max]u8 = undefined;
    for (0..churn_steps) |_| {
        const vertex: u32 = @intCast(prng.below(6));
        if (prng.below(4) == 0) {
            const pin = shared.cache.peek(vertex) orelse continue;
            defer shared.cache.release(pin);
            model.expect_record(pin, vertex) catch shared.failed.store(true, .release);
        } else if (shared.cache.try_insert(vertex, model.record_of(vertex, &buffer))) {
            _ = shared.inserts.fetchAdd(1, .monotonic);
        }
    }
}

test "insertions of several threads evict each other and mapping and slots still agree" {
    const seed: u64 = @as(u64, testing.random_seed) *% 100;
    errdefer std.debug.print("cache churn: seed={d}\n", .{seed});
    var shared: Shared = .{ .cache = try Cache.init(testing.allocator, model.options(6, 2)) };
    defer shared.cache.deinit();
    var threads: [3]std.Thread = undefined;
    for (&threads, 0..) |*thread, i| thread.* = try std.Thread.spawn(.{}, churn, .{ &shared, seed +% i });
    for (threads) |thread| thread.join();
    try testing.expect(!shared.failed.load(.acquire));
    try model.verify(&shared.cache);
    try testing.expect(shared.inserts.load(.acquire) > 100);
}
