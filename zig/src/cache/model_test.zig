//! The cache against a model written without atomics, over random interleavings of what queries do.
const std = @import("std");
const base = @import("base");
const builtin = @import("builtin");
const cache_module = @import("record_cache.zig");
const Cache = cache_module.Cache;
const Pin = cache_module.Pin;
const Word = cache_module.Word;
const testing = std.testing;

const record_max = 48;

/// The record of a vertex: its bytes and its length are functions of the vertex.
fn record_of(vertex: u32, buffer: *[record_max]u8) []const u8 {
    const length = 1 + vertex * 7 % record_max;
    for (buffer[0..length], 0..) |*byte, i| byte.* = @truncate(vertex *% 31 +% i);
    return buffer[0..length];
}

fn expect_record(pin: Pin, vertex: u32) !void {
    var buffer: [record_max]u8 = undefined;
    try testing.expectEqualSlices(u8, record_of(vertex, &buffer), pin.bytes());
}

/// A budget that yields exactly `slots` slots.
pub fn options(vertex_count: u32, slots: usize) cache_module.Options {
    return .{
        .vertex_count = vertex_count,
        .budget_bytes = @as(usize, vertex_count) * 4 + 64 + 4096 + slots * (record_max + 16),
        .slot_bytes = record_max,
    };
}

/// Counts every slot and checks that mapping and slots agree. Only while no other thread uses the cache.
pub fn verify(cache: *const Cache) !void {
    var free: u32 = 0;
    for (cache.slots, 0..) |*slot, i| switch (@as(Word, @bitCast(slot.word.load(.acquire))).state) {
        .free => free += 1,
        .locked => return error.SlotLeftLocked,
        .occupied, .marked => try testing.expectEqual(i, cache.mapping[slot.vertex].load(.acquire)),
    };
    try testing.expectEqual(free, cache.free_count.load(.acquire));
    var on_list: u32 = 0;
    var next = @as(Cache.Head, @bitCast(cache.free_head.load(.acquire))).slot;
    while (next != cache_module.no_slot) : (next = cache.slots[next].link.load(.acquire)) on_list += 1;
    try testing.expectEqual(free, on_list);
    var named: u32 = 0;
    for (cache.mapping, 0..) |*entry, vertex| {
        const slot = entry.load(.acquire);
        if (slot == cache_module.absent) continue;
        try testing.expectEqual(vertex, cache.slots[slot].vertex);
        named += 1;
    }
    try testing.expectEqual(cache.slots.len, named + free);
}

/// Clock with a second chance in the plainest form.
const Model = struct {
    const slots_max = 12;
    const ModelSlot = struct { vertex: ?u32 = null, second_chance: bool = false, pins: u32 = 0 };

    slots: []ModelSlot,
    /// A stack.
    free: [slots_max]u32 = undefined,
    free_count: u32 = 0,
    hand: u32 = 0,

    fn find(model: *Model, vertex: u32) ?u32 {
        for (model.slots, 0..) |slot, i| if (slot.vertex == vertex) return @intCast(i);
        return null;
    }

    fn insert(model: *Model, vertex: u32) ?u32 {
        const slot = if (model.free_count > 0) pop: {
            model.free_count -= 1;
            break :pop model.free[model.free_count];
        } else model.victim() orelse return null;
        model.slots[slot] = .{ .vertex = vertex };
        return slot;
    }

    fn victim(model: *Model) ?u32 {
        for (0..2 * model.slots.len + 1) |_| {
            const at = model.hand;
            model.hand = @intCast((at + 1) % model.slots.len);
            const slot = &model.slots[at];
            if (slot.vertex == null or slot.pins > 0) continue;
            if (slot.second_chance) {
                slot.second_chance = false;
                continue;
            }
            slot.vertex = null;
            return at;
        }
        return null;
    }

    fn sweep(model: *Model, ahead: u32) u32 {
        var evicted: u32 = 0;
        while (model.free_count < @min(ahead, model.slots.len)) : (evicted += 1) {
            model.free[model.free_count] = model.victim() orelse break;
            model.free_count += 1;
        }
        return evicted;
    }
};

/// The real cache and the model side by side.
fn run(seed: u64) !void {
    errdefer std.debug.print("cache model: seed={d}\n", .{seed});
    var prng = base.Prng.init(seed);
    const slot_count: u32 = @intCast(1 + prng.below(Model.slots_max));
    const vertex_count: u32 = @intCast(slot_count + prng.below(40));
    var counting = std.testing.FailingAllocator.init(testing.allocator, .{});
    var cache = try Cache.init(counting.allocator(), options(vertex_count, slot_count));
    defer cache.deinit();
    const allocations = counting.allocations;
    try testing.expectEqual(slot_count, cache.slot_count());
    var model_slots: [Model.slots_max]Model.ModelSlot = @splat(.{});
    var model: Model = .{ .slots = model_slots[0..slot_count], .free_count = slot_count };
    for (0..slot_count) |i| model.free[i] = @intCast(slot_count - 1 - i);

    var pins: std.ArrayList(struct { pin: Pin, vertex: u32 }) = .empty;
    defer pins.deinit(testing.allocator);
    var buffer: [record_max]u8 = undefined;
    // Swarm: each run has its own mix, so that rare states are reached in some.
    var weights: [4]u64 = undefined;
    for (&weights) |*weight| weight.* = prng.below(4);
    weights[0] += 1;
    weights[2] += 1;

    for (0..2000) |_| {
        const vertex: u32 = @intCast(prng.below(vertex_count));
        var total: u64 = 0;
        for (weights) |weight| total += weight;
        var pick = prng.below(total);
        const operation = for (weights, 0..) |weight, i| {
            if (pick < weight) break i;
            pick -= weight;
        } else unreachable;
        switch (operation) {
            0 => if (cache.peek(vertex)) |pin| {
                try expect_record(pin, vertex);
                const slot = model.find(vertex) orelse return error.HitWithoutRecord;
                try testing.expectEqual(slot, pin.slot);
                model.slots[slot].pins += 1;
                model.slots[slot].second_chance = true;
                try pins.append(testing.allocator, .{ .pin = pin, .vertex = vertex });
            } else try testing.expectEqual(null, model.find(vertex)),
            1 => if (pins.items.len > 0) {
                const held = pins.swapRemove(@intCast(prng.below(pins.items.len)));
                try expect_record(held.pin, held.vertex);
                cache.release(held.pin);
                model.slots[held.pin.slot].pins -= 1;
            },
            2 => { // a page brought a record
                const known = model.find(vertex) != null;
                const inserted = cache.try_insert(vertex, record_of(vertex, &buffer));
                if (known) {
                    try testing.expect(!inserted);
                } else try testing.expectEqual(model.insert(vertex) != null, inserted);
            },
            3 => {
                const ahead: u32 = @intCast(prng.below(4));
                try testing.expectEqual(model.sweep(ahead), cache.sweep(ahead));
            },
            else => unreachable,
        }
        try verify(&cache);
        for (0..vertex_count) |v| try testing.expectEqual(model.find(@intCast(v)) != null, cache.contains(@intCast(v)));
        for (pins.items) |held| try expect_record(held.pin, held.vertex);
    }
    for (pins.items) |held| cache.release(held.pin);
    try testing.expectEqual(allocations, counting.allocations);
}

// ---- threads ----
//
// Many threads on a tiny cache: no reader may ever see a slot being reused. Run it under ThreadSanitizer too
// (`zig build tsan-cache`), which sees what luck hides.

const stressed_vertices = 40;
const thread_count = 4;
const steps = 6_000;

const Shared = struct {
    cache: Cache,
    failed: std.atomic.Value(bool) = .init(false),
    hits: std.atomic.Value(u64) = .init(0),
    inserts: std.atomic.Value(u64) = .init(0),
};

fn work_thread(shared: *Shared, seed: u64) void {
    run_thread(shared, seed) catch |err| {
        std.debug.print("cache stress: {t} seed={d}\n", .{ err, seed });
        shared.failed.store(true, .release);
    };
}

/// Holds up to three pins at once while it looks, inserts and sweeps.
fn run_thread(shared: *Shared, seed: u64) !void {
    const cache = &shared.cache;
    var prng = base.Prng.init(seed);
    var held: [3]?struct { pin: Pin, vertex: u32 } = @splat(null);
    defer for (held) |entry| if (entry) |h| cache.release(h.pin);
    var buffer: [record_max]u8 = undefined;
    var hits: u64 = 0;
    var inserts: u64 = 0;
    for (0..steps) |_| {
        // Skewed, so that threads meet at the same vertices.
        const vertex: u32 = @intCast(@min(prng.below(stressed_vertices), prng.below(stressed_vertices)));
        const place = prng.below(held.len);
        if (held[place]) |h| {
            try expect_record(h.pin, h.vertex);
            cache.release(h.pin);
            held[place] = null;
        }
        if (prng.below(8) == 0) _ = cache.sweep(@intCast(prng.below(3)));
        if (cache.peek(vertex)) |pin| {
            hits += 1;
            try expect_record(pin, vertex);
            held[place] = .{ .pin = pin, .vertex = vertex };
        } else if (prng.below(8) > 0) inserts += @intFromBool(cache.try_insert(vertex, record_of(vertex, &buffer)));
        if (prng.below(64) == 0) std.Thread.yield() catch {};
        for (held) |entry| if (entry) |h| try expect_record(h.pin, h.vertex);
    }
    _ = shared.hits.fetchAdd(hits, .acq_rel);
    _ = shared.inserts.fetchAdd(inserts, .acq_rel);
}

/// ThreadSanitizer needs fewer, and takes longer for each.
const churn_steps = if (builtin.sanitize_thread) 8_000 else 60_000;

fn churn(shared: *Shared, seed: u64) void {
    var prng = base.Prng.init(seed);
    var buffer: [record_max]u8 = undefined;
    for (0..churn_steps) |_| {
        const vertex: u32 = @intCast(prng.below(6));
        if (prng.below(4) == 0) {
            const pin = shared.cache.peek(vertex) orelse continue;
            defer shared.cache.release(pin);
            expect_record(pin, vertex) catch shared.failed.store(true, .release);
        } else if (shared.cache.try_insert(vertex, record_of(vertex, &buffer))) {
            _ = shared.inserts.fetchAdd(1, .monotonic);
        }
    }
}

test "the cache does what its model does" {
    for (0..60) |i| try run(@as(u64, testing.random_seed) *% 1000 +% i);
}

test "a budget without room for a slot: every look misses and nothing is held" {
    for ([_]usize{ 0, 100, 4 * 1000, 4 * 1000 + 64 + 4096 + record_max + 15 }) |budget_bytes| {
        var cache = try Cache.init(testing.allocator, .{ .vertex_count = 1000, .budget_bytes = budget_bytes, .slot_bytes = record_max });
        defer cache.deinit();
        try testing.expectEqual(0, cache.slot_count());
        try testing.expectEqual(0, cache.memory_bytes());
        try testing.expect(!cache.try_insert(7, "record"));
        try testing.expectEqual(null, cache.peek(7));
        try testing.expect(!cache.contains(7));
        try testing.expectEqual(0, cache.sweep(3));
        try verify(&cache);
    }
}

test "the budget is kept, and used" {
    for ([_]u32{ 1, 100, 500, 4000 }) |slot_bytes| {
        for ([_]usize{ 60_000, 1 << 20, 10_000_000 }) |budget_bytes| {
            var cache = try Cache.init(testing.allocator, .{ .vertex_count = 10_000, .budget_bytes = budget_bytes, .slot_bytes = slot_bytes });
            defer cache.deinit();
            try testing.expect(cache.memory_bytes() <= budget_bytes);
            const whole = cache.slot_count() == 10_000;
            if (!whole) try testing.expect(cache.memory_bytes() + 2 * 4096 + slot_bytes + 128 > budget_bytes);
        }
    }
}

test "a record longer than a slot is never kept" {
    var cache = try Cache.init(testing.allocator, options(10, 4));
    defer cache.deinit();
    const long: [record_max + 1]u8 = @splat(1);
    try testing.expect(!cache.try_insert(3, &long));
    try testing.expect(cache.try_insert(3, long[0..record_max]));
    const pin = cache.peek(3).?;
    try testing.expectEqual(record_max, pin.bytes().len);
    cache.release(pin);
    try verify(&cache);
}

test "the clock keeps what is used and lets a stream pass" {
    var cache = try Cache.init(testing.allocator, options(10_000, 100));
    defer cache.deinit();
    var buffer: [record_max]u8 = undefined;
    var hot_hits: u32 = 0;
    for (0..10_000) |i| {
        const vertex: u32 = @intCast(if (i % 2 == 0) i / 2 % 20 else 20 + i % 9_980);
        if (cache.peek(vertex)) |pin| {
            hot_hits += @intFromBool(vertex < 20);
            cache.release(pin);
        } else try testing.expect(cache.try_insert(vertex, record_of(vertex, &buffer)));
    }
    // 5,000 looks for 20 hot vertices, between which 20 others pass: the first of each misses, and next to no other.
    try testing.expect(hot_hits >= 4_900);
    try testing.expect(hot_hits <= 4_980);
}

test "no reader of several threads sees a slot being reused" {
    const seed: u64 = @as(u64, testing.random_seed) *% 100;
    for ([_]usize{ 1, 3, 8, 20 }) |slots| {
        var shared: Shared = .{ .cache = try Cache.init(testing.allocator, options(stressed_vertices, slots)) };
        defer shared.cache.deinit();
        var threads: [thread_count]std.Thread = undefined;
        for (&threads, 0..) |*thread, i| {
            thread.* = try std.Thread.spawn(.{}, work_thread, .{ &shared, seed +% i });
        }
        for (threads) |thread| thread.join();
        try testing.expect(!shared.failed.load(.acquire));
        try testing.expect(shared.hits.load(.acquire) > 0);
        try verify(&shared.cache);
        // More than there is room for, so some were evicted.
        try testing.expect(shared.inserts.load(.acquire) > slots);
    }
}

test "insertions of several threads evict each other and mapping and slots still agree" {
    const seed: u64 = @as(u64, testing.random_seed) *% 100;
    errdefer std.debug.print("cache churn: seed={d}\n", .{seed});
    var shared: Shared = .{ .cache = try Cache.init(testing.allocator, options(6, 2)) };
    defer shared.cache.deinit();
    var threads: [3]std.Thread = undefined;
    for (&threads, 0..) |*thread, i| thread.* = try std.Thread.spawn(.{}, churn, .{ &shared, seed +% i });
    for (threads) |thread| thread.join();
    try testing.expect(!shared.failed.load(.acquire));
    try verify(&shared.cache);
    try testing.expect(shared.inserts.load(.acquire) > 100);
}
