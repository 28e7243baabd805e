//! Handles of velo.h that one thread may close while others call with them. A handle is a number: a slot in a table of the process,
//! and the generation of its content.
//!
//! A call enters a slot and leaves it. A close keeps further calls out, waits for the calls inside, and takes the content. A handle
//! that was closed, or that nothing gave out, is refused, and so is a handle of the parent in a child of fork.
const std = @import("std");
const base = @import("base");
const common = @import("common.zig");
const errors = @import("errors.zig");
const ok = common.ok;

pub const Handle = u64;

/// A close that waited for so long returns VELO_BUSY, so that its caller can look at signals.
const patience_ms = 100;

pub const Kind = enum(u8) { scope, index, live };

const State = packed struct(u64) {
    /// Calls inside, among them for a moment calls that are refused.
    calls: u31,
    is_closed: bool,
    generation: u32,

    fn of(bits: u64) State {
        return @bitCast(bits);
    }
};

const Slot = struct {
    state: std.atomic.Value(u64) align(std.atomic.cache_line),
    /// The process that opened it.
    process: std.atomic.Value(i32),
    kind: std.atomic.Value(Kind),
    object: *anyopaque,
    /// The next free one.
    following: ?*Slot,
    number: u32,

    fn is_open(self: *const Slot, comptime T: type, handle: Handle, state: u64) bool {
        const found: State = .of(state);
        return !found.is_closed and found.generation == handle >> 32 and self.kind.load(.monotonic) == T.handle_kind;
    }
};

/// Slots never move: chunk c has `first_chunk << c` of them.
const Table = struct {
    const first_chunk = 64;
    const chunk_count = 32 - @as(u32, std.math.log2_int(u32, first_chunk));

    lock: common.ProcessLock = .{},
    chunks: [chunk_count]std.atomic.Value(?[*]Slot) = @splat(.init(null)),
    /// Slots that were ever opened.
    used: u32 = 0,
    free: ?*Slot = null,

    fn find(self: *Table, handle: Handle) ?*Slot {
        const number = @as(u32, @truncate(handle)) +| first_chunk;
        if (number < first_chunk) return null;
        const chunk = std.math.log2_int(u32, number) - std.math.log2_int(u32, first_chunk);
        const slots = self.chunks[chunk].load(.acquire) orelse return null;
        return &slots[number - (@as(u32, first_chunk) << chunk)];
    }

    /// A free slot; with the lock.
    fn take(self: *Table) error{OutOfMemory}!*Slot {
        if (self.free) |slot| {
            self.free = slot.following;
            return slot;
        }
        const slot = self.find(self.used) orelse blk: {
            const chunk = std.math.log2_int(u32, self.used + first_chunk) - std.math.log2_int(u32, first_chunk);
            const slots = try common.allocator.alloc(Slot, @as(usize, first_chunk) << chunk);
            for (slots, self.used..) |*slot, number| slot.* = .{
                .state = .init(@bitCast(State{ .calls = 0, .is_closed = true, .generation = 1 })),
                .process = .init(0),
                .kind = .init(.scope),
                .object = undefined,
                .following = null,
                .number = @intCast(number),
            };
            self.chunks[chunk].store(slots.ptr, .release);
            break :blk &slots[0];
        };
        self.used += 1;
        return slot;
    }
};

var table: Table = .{};

pub fn open(comptime T: type, object: *T) error{OutOfMemory}!Handle {
    const is_first = table.lock.lock();
    defer table.lock.unlock();
    // A child of fork leaves the slots of its parent alone.
    if (is_first) table.free = null;
    const slot = try table.take();
    slot.object = object;
    slot.kind.store(T.handle_kind, .monotonic);
    slot.process.store(common.process(), .monotonic);
    const is_closed: u64 = @bitCast(State{ .calls = 0, .is_closed = true, .generation = 0 });
    const before: State = .of(slot.state.fetchAnd(~is_closed, .release));
    return @as(u64, before.generation) << 32 | slot.number;
}

/// A call begins; `leave` ends it.
pub fn enter(comptime T: type, comptime argument: []const u8, handle: Handle) error{Reported}!*T {
    if (handle == 0) return common.report(.invalid_argument, .{ .argument = argument }, argument ++ " is NULL", .{});
    const slot = table.find(handle) orelse return report_closed();
    if (slot.process.load(.monotonic) != common.process()) {
        _ = common.forked();
        return error.Reported;
    }
    // Before the count, so that callers of a closed handle do not keep the close that waits.
    if (!slot.is_open(T, handle, slot.state.load(.monotonic))) return report_closed();
    if (!slot.is_open(T, handle, slot.state.fetchAdd(1, .acquire))) {
        leave(handle);
        return report_closed();
    }
    return @ptrCast(@alignCast(slot.object));
}

pub fn leave(handle: Handle) void {
    _ = table.find(handle).?.state.fetchSub(1, .release);
}

/// Keeps further calls out and returns the object, which has no users any more; null where it was closed before, or belongs to
/// another process. After error.Busy it is closed, and to be closed again.
pub fn close(comptime T: type, handle: Handle) error{Busy}!?*T {
    const slot = table.find(handle) orelse return null;
    if (slot.process.load(.monotonic) != common.process()) return null;
    const empty: State = .{ .calls = 0, .is_closed = true, .generation = @intCast(handle >> 32) };
    var state: State = .of(slot.state.load(.acquire));
    while (true) {
        if (state.generation != empty.generation or slot.kind.load(.monotonic) != T.handle_kind) return null;
        if (state.is_closed) break;
        var closed_state = state;
        closed_state.is_closed = true;
        state = .of(slot.state.cmpxchgWeak(@bitCast(state), @bitCast(closed_state), .acq_rel, .acquire) orelse break);
    }
    var next = empty;
    next.generation +%= 1;
    if (next.generation == 0) next.generation = 1; // zero is no handle
    const until_us = base.nowMicros() + patience_ms * std.time.us_per_ms;
    var pause_us: u64 = 20;
    while (slot.state.cmpxchgStrong(@bitCast(empty), @bitCast(next), .acq_rel, .acquire)) |seen| {
        if (State.of(seen).generation != empty.generation) return null; // another thread closed it meanwhile
        if (base.nowMicros() >= until_us) return error.Busy;
        std.Thread.sleep(pause_us * std.time.ns_per_us);
        pause_us = @min(2 * pause_us, std.time.us_per_ms);
    }
    const object: *T = @ptrCast(@alignCast(slot.object));
    _ = table.lock.lock(); // not the first time in this process, which opened it
    defer table.lock.unlock();
    slot.following = table.free;
    table.free = slot;
    return object;
}

pub fn closed() i32 {
    return common.fail(.closed, .{}, "the index was closed", .{});
}

pub fn report_closed() error{Reported} {
    _ = closed();
    return error.Reported;
}

pub fn busy() i32 {
    return common.fail(.busy, .{}, "calls are inside", .{});
}

// ---- scopes ----
//
// An object of the caller that several calls use together: a handle that nothing is behind.

const Scope = struct {
    pub const handle_kind: Kind = .scope;
    var any: Scope = .{};
};

export fn velo_scope_open(scope_out: ?*Handle) i32 {
    const out = scope_out orelse return common.null_argument("scope_out");
    out.* = open(Scope, &Scope.any) catch return common.out_of_memory();
    return ok;
}

export fn velo_scope_check(scope: Handle) i32 {
    _ = enter(Scope, "scope", scope) catch return errors.last_status();
    leave(scope);
    return ok;
}

export fn velo_scope_enter(scope: Handle, held_out: ?*Handle) i32 {
    const out = held_out orelse return common.null_argument("held_out");
    _ = enter(Scope, "scope", scope) catch return errors.last_status();
    out.* = scope;
    return ok;
}

export fn velo_scope_leave(held: ?*Handle) i32 {
    const scope = @atomicRmw(Handle, held orelse return ok, .Xchg, 0, .acq_rel);
    if (scope != 0) leave(scope);
    return ok;
}

export fn velo_scope_close(scope: ?*Handle) i32 {
    _ = close(Scope, (scope orelse return ok).*) catch return busy();
    return ok;
}

const testing = std.testing;

const Content = struct {
    pub const handle_kind: Kind = .index;
    /// Written by calls without a lock of their own: a close that did not wait for them would race with them.
    uses: std.atomic.Value(u32) = .init(0),
    is_freed: bool = false,

    fn create() !Handle {
        const self = try testing.allocator.create(Content);
        self.* = .{};
        return open(Content, self);
    }
};

fn status() i32 {
    return errors.last_status();
}

test "a handle is entered until it is closed, and its slot has another handle then" {
    const handle = try Content.create();
    const content = try enter(Content, "index", handle);
    try testing.expectError(error.Busy, close(Content, handle));
    try testing.expectError(error.Reported, enter(Content, "index", handle));
    try testing.expectEqual(15, status());
    leave(handle);
    try testing.expectEqual(content, (try close(Content, handle)).?);
    try testing.expectEqual(null, try close(Content, handle));
    const second = try open(Content, content);
    try testing.expect(second != handle);
    try testing.expectEqual(@as(u32, @truncate(handle)), @as(u32, @truncate(second)));
    try testing.expectError(error.Reported, enter(Content, "index", handle));
    try testing.expectEqual(content, try enter(Content, "index", second));
    leave(second);
    try testing.expectEqual(content, (try close(Content, second)).?);
    testing.allocator.destroy(content);
}

test "a number that is no handle, and a handle of another kind, are refused" {
    var scope: Handle = 0;
    try testing.expectEqual(0, velo_scope_open(&scope));
    for ([_]Handle{ scope, 1 << 32 | 0x0fff_fff0, std.math.maxInt(u64), 77 }) |handle| {
        try testing.expectError(error.Reported, enter(Content, "index", handle));
        try testing.expectEqual(15, status());
        try testing.expectEqual(null, try close(Content, handle));
    }
    try testing.expectError(error.Reported, enter(Content, "index", 0));
    try testing.expectEqual(1, status());
    try testing.expectEqual(0, velo_scope_check(scope));
    var held: Handle = 0;
    try testing.expectEqual(0, velo_scope_enter(scope, &held));
    try testing.expectEqual(18, velo_scope_close(&scope));
    try testing.expectEqual(15, velo_scope_check(scope));
    for (0..2) |_| try testing.expectEqual(0, velo_scope_leave(&held));
    for (0..2) |_| try testing.expectEqual(0, velo_scope_close(&scope));
}

test "a child of fork is refused what the parent opened, and opens handles of its own" {
    var scope: Handle = 0;
    try testing.expectEqual(0, velo_scope_open(&scope));
    defer _ = velo_scope_close(&scope);
    const child = try std.posix.fork();
    if (child == 0) {
        var own: Handle = 0;
        const is_right = velo_scope_check(scope) == 16 and velo_scope_close(&scope) == 0 and
            velo_scope_open(&own) == 0 and own != scope and velo_scope_check(own) == 0 and velo_scope_close(&own) == 0 and velo_scope_check(own) == 15;
        std.posix.exit(@intFromBool(!is_right));
    }
    try testing.expectEqual(0, std.posix.waitpid(child, 0).status);
    try testing.expectEqual(0, velo_scope_check(scope));
}

test "calls of many threads never find what is freed while others open and close" {
    const thread_count = 4;
    const Shared = struct {
        handles: [8]std.atomic.Value(Handle) = @splat(.init(0)),
        stop: std.atomic.Value(bool) = .init(false),
        refused: std.atomic.Value(u32) = .init(0),
        entered: std.atomic.Value(u32) = .init(0),

        fn call(self: *@This(), seed: u64) void {
            var random = std.Random.DefaultPrng.init(seed);
            while (!self.stop.load(.monotonic)) {
                const handle = self.handles[random.random().uintLessThan(usize, self.handles.len)].load(.monotonic);
                const content = enter(Content, "index", handle) catch {
                    _ = self.refused.fetchAdd(1, .monotonic);
                    continue;
                };
                std.debug.assert(!content.is_freed);
                _ = content.uses.fetchAdd(1, .monotonic);
                leave(handle);
                _ = self.entered.fetchAdd(1, .monotonic);
            }
        }

        /// Two threads close each handle; one of them gets the content.
        fn close_one(handle: Handle, freed: *std.atomic.Value(u32)) void {
            const content = while (true) break close(Content, handle) catch continue orelse return;
            content.is_freed = true;
            testing.allocator.destroy(content);
            _ = freed.fetchAdd(1, .monotonic);
        }
    };
    var shared: Shared = .{};
    var threads: [thread_count]std.Thread = undefined;
    for (&threads, 0..) |*thread, i| thread.* = try std.Thread.spawn(.{}, Shared.call, .{ &shared, i });
    var freed: std.atomic.Value(u32) = .init(0);
    const rounds = 2000;
    for (0..rounds) |round| {
        const place = &shared.handles[round % shared.handles.len];
        const before = place.swap(try Content.create(), .monotonic);
        if (before == 0) continue;
        if (round % 16 != 0) {
            Shared.close_one(before, &freed);
            continue;
        }
        const other = try std.Thread.spawn(.{}, Shared.close_one, .{ before, &freed });
        Shared.close_one(before, &freed);
        other.join();
    }
    shared.stop.store(true, .monotonic);
    for (&threads) |thread| thread.join();
    for (&shared.handles) |*place| Shared.close_one(place.load(.monotonic), &freed);
    try testing.expectEqual(rounds, freed.load(.monotonic));
    try testing.expect(shared.entered.load(.monotonic) > 0);
}
