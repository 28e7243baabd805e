//! Live data against a crash at any change, a full disk and syncs that fail: what was acknowledged as durable is there,
//! all else wholly or not at all, and what was written is never what nobody wrote.
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const live_room = @import("live");
const SimulatedStore = @import("store.zig").SimulatedStore;
const BitSet = base.BitSet;
const worlds = @import("worlds.zig");
const Live = live_room.Live(SimulatedStore);

const rows = 96;

/// The dead set.
const State = [(rows + 63) / 64]u64;
const Model = @import("worlds.zig").Model(State);

fn checked(model: *const Model, live: *Live) !State {
    const state = try deleted_of(model.allocator, live);
    try model.check(live.sequence, state);
    return state;
}

fn deleted_of(allocator: std.mem.Allocator, live: *Live) !State {
    var set = try BitSet.init(allocator, rows);
    defer set.deinit(allocator);
    _ = live.copy_deleted(0, &set);
    var state: State = undefined;
    @memcpy(&state, set.words);
    return state;
}

const numbers = blk: {
    var ids: [rows]i64 = undefined;
    for (&ids, 0..) |*id, i| id.* = 7 * @as(i64, @intCast(i)) - 20;
    break :blk ids;
};

fn make_index(allocator: std.mem.Allocator, store: *SimulatedStore) !void {
    const manifest = layout.manifest.example(rows, &.{ .{ .name = "codes.bin", .bytes = 5, .checksum = "00" }, .{ .name = "pages.bin", .bytes = 5, .checksum = "00" } });
    const text = try layout.manifest.write(allocator, &manifest);
    defer allocator.free(text);
    for ([_][]const u8{ "codes.bin", "pages.bin", "manifest.json" }) |name| {
        const file = try store.create(name);
        try store.write(file, if (name[0] == 'm') text else name[0..5], 0);
        try store.sync(file);
    }
    try store.sync_folder(".");
}

/// An ordinary index lies where the manifest says, or where it always lay, and never at both places once a write was
/// acknowledged.
fn check_files(store: *SimulatedStore, acknowledged: bool) !void {
    const is_written = store.names.contains(live_room.manifest.file_name);
    if (acknowledged and !is_written) return error.ManifestLost;
    if (acknowledged and store.names.contains("manifest.json")) return error.OlderVeloFindsIt;
    const segment = "part-0000000000000001/";
    for ([_][]const u8{ "codes.bin", "pages.bin", "manifest.json" }) |name| {
        var buffer: [64]u8 = undefined;
        const path = if (is_written) try std.fmt.bufPrint(&buffer, segment ++ "{s}", .{name}) else name;
        const node = store.names.get(path) orelse return error.FileLost;
        if (name[0] != 'm' and !std.mem.eql(u8, name[0..5], store.nodes.items[node].current.items)) return error.FileChanged;
    }
}

fn attached(live: *Live, diagnostic: *live_room.Diagnostic) !void {
    try live.attach(0, .{ .numbers = &numbers }, diagnostic);
    try live.begin(.{ .kind = .numbers }, diagnostic);
}

const Run = struct {
    allocator: std.mem.Allocator,
    store: SimulatedStore,
    prng: base.Prng,
    model: Model,
    wrote: bool = false,
    /// Columns that are there for good, and those that may be: the schema is as many bytes.
    columns: usize = 0,
    columns_tried: usize = 0,

    /// One writer's life: from opening to whatever ends it.
    fn life(self: *Run) !void {
        var diagnostic: live_room.Diagnostic = .{};
        const durability: live_room.Durability = @enumFromInt(self.prng.below(3));
        var live = Live.open(self.allocator, &self.store, .{
            .writable = true,
            .durability = durability,
            .checkpoint_bytes = 64 + self.prng.below(1500),
            .seed = self.prng.next(),
        }, &diagnostic) catch |err| return self.may_fail(err);
        defer live.deinit();
        attached(&live, &diagnostic) catch |err| return self.may_fail(err);
        try self.check_columns(&live);
        self.columns = if (live.schema) |text| text.len else 0;
        // The state that was found is on the device now, whatever it was before.
        const found = try checked(&self.model, &live);
        try self.model.settle(live.sequence, found);
        self.model.durable = live.sequence;
        try check_files(&self.store, self.wrote);
        var reader: ?Live = null;
        defer if (reader) |*one| one.deinit();
        for (0..self.prng.below(30)) |_| {
            switch (self.prng.below(16)) {
                0 => live.checkpoint(&diagnostic) catch |err| try self.may_fail(err),
                1 => if (live.sync(&diagnostic)) {
                    self.model.durable = self.model.sequence;
                } else |err| try self.may_fail(err),
                2 => {
                    if (reader) |*one| one.deinit();
                    reader = null;
                    reader = Live.open(self.allocator, &self.store, .{}, &diagnostic) catch |err| return self.may_fail(err);
                    attached(&reader.?, &diagnostic) catch |err| return self.may_fail(err);
                    _ = try checked(&self.model, &reader.?);
                    try self.check_columns(&reader.?);
                },
                3, 4 => if (reader) |*one| {
                    if (one.refresh(&diagnostic)) |_| {
                        const seen = try checked(&self.model, one);
                        if (!live.poisoned) try std.testing.expectEqual(self.model.now(), seen);
                        try self.check_columns(one);
                    } else |err| return self.may_fail(err);
                },
                5 => try self.add_columns(&live, &diagnostic),
                // The begin of a call that makes a part of its rows: the folder is live, and nothing else is changed.
                6 => if (live.reserve(.{ .count = 1, .kind = .numbers, .ids = .{ .numbers = &.{1 << 40} }, .vectors = "" }, null, &diagnostic)) |_| {
                    self.wrote = true;
                } else |err| try self.may_fail(err),
                else => try self.delete(&live, &diagnostic),
            }
            if (self.store.crashed) return;
            if (!live.poisoned) try std.testing.expectEqual(self.model.now(), try deleted_of(self.allocator, &live));
        }
        if (self.prng.boolean()) {
            if (live.finish(&diagnostic)) self.model.durable = self.model.sequence else |err| try self.may_fail(err);
        }
        if (!self.store.crashed and self.prng.below(3) == 0) self.store.crashed = true; // the power goes
    }

    fn delete(self: *Run, live: *Live, diagnostic: *live_room.Diagnostic) !void {
        var ids: [12]i64 = undefined;
        const count: usize = @intCast(self.prng.below(ids.len) + 1);
        var after = self.model.now();
        var new_rows: u64 = 0;
        for (ids[0..count]) |*id| {
            const row = self.prng.below(rows + 8);
            id.* = 7 * @as(i64, @intCast(row)) - 20;
            if (row >= rows) continue;
            const bit = @as(u64, 1) << @intCast(row % 64);
            new_rows += @intFromBool(after[@intCast(row / 64)] & bit == 0);
            after[@intCast(row / 64)] |= bit;
        }
        if (new_rows > 0) try self.model.add(self.model.sequence + 1, after);
        const was_poisoned = live.poisoned;
        const before = live.sequence;
        const done = live.delete(.{ .numbers = ids[0..count] }, diagnostic) catch |err| {
            if (!live.poisoned and !self.store.crashed) try std.testing.expectEqual(before, live.sequence);
            return self.may_fail(err);
        };
        try std.testing.expect(!was_poisoned);
        try std.testing.expectEqual(new_rows, done.rows);
        if (new_rows > 0) self.model.sequence += 1;
        try std.testing.expectEqual(self.model.sequence, done.sequence);
        if (live.options.durability == .sync) try std.testing.expect(done.durable);
        if (done.durable) self.model.durable = done.sequence;
        self.wrote = self.wrote or new_rows > 0;
    }

    fn add_columns(self: *Run, live: *Live, diagnostic: *live_room.Diagnostic) !void {
        const text = "c" ** 64;
        const before = if (live.schema) |columns| columns.len else 0;
        if (!live.poisoned) {
            const stale = try live.set_schema(text, live.schema_version + 1, diagnostic);
            try std.testing.expectEqual(.stale, stale.outcome);
        }
        const count = before + 1;
        if (count > text.len) return;
        self.columns_tried = count;
        const done = live.set_schema(text[0..count], live.schema_version, diagnostic) catch |err| {
            try std.testing.expectEqual(before, if (live.schema) |columns| columns.len else 0);
            return self.may_fail(err);
        };
        try std.testing.expect(done.durable);
        self.columns = count;
        self.wrote = true;
        // The manifest holds all that was written.
        self.model.durable = self.model.sequence;
    }

    /// Columns that were acknowledged are there, and none that nobody added.
    fn check_columns(self: *const Run, live: *const Live) !void {
        const found = if (live.schema) |text| text.len else 0;
        if (found < self.columns or found > self.columns_tried) return error.ColumnsLost;
    }

    /// A failure is all right where the world is what fails.
    fn may_fail(self: *Run, err: anyerror) !void {
        const faulty = self.store.crashed or self.store.faults.full > 0 or self.store.faults.sync > 0;
        switch (err) {
            error.Io, error.NoSpace => if (!faulty) return err,
            else => return err,
        }
    }

    fn all(self: *Run, crash_at: u64) !void {
        try make_index(self.allocator, &self.store);
        if (self.prng.below(3) == 0) self.store.faults.full = @intCast(4 + self.prng.below(40));
        if (self.prng.below(3) == 0) self.store.faults.sync = @intCast(4 + self.prng.below(40));
        self.store.crash_at = self.store.changes + crash_at;
        for (0..6) |_| {
            try self.life();
            if (self.store.crashed) {
                try self.store.restart();
                try check_files(&self.store, self.wrote); // also before anybody mends anything
                self.store.crash_at = self.store.changes + self.prng.below(150);
            } else self.store.kill();
        }
        // In the end the world is well again, and all that was acknowledged is there.
        self.store.faults = .{};
        self.store.crash_at = std.math.maxInt(u64);
        for (0..2) |_| {
            var diagnostic: live_room.Diagnostic = .{};
            self.store.kill();
            var live = try Live.open(self.allocator, &self.store, .{ .writable = true, .seed = 1 }, &diagnostic);
            defer live.deinit();
            attached(&live, &diagnostic) catch |err| {
                std.debug.print("{s}\n", .{diagnostic.message()});
                return err;
            };
            try self.check_columns(&live);
            try self.model.settle(live.sequence, try checked(&self.model, &live));
            self.model.durable = live.sequence;
            try check_files(&self.store, self.wrote);
            try self.delete(&live, &diagnostic);
        }
    }
};

/// Returns how many changes were made.
fn run(allocator: std.mem.Allocator, seed: u64, crash_at: ?u64) anyerror!u64 {
    var prng = base.Prng.init(seed);
    var one: Run = .{
        .allocator = allocator,
        .store = .init(std.heap.c_allocator, prng.next()),
        .prng = prng,
        .model = try .init(allocator),
    };
    defer one.store.deinit();
    defer one.model.deinit();
    const at = crash_at orelse one.prng.below(200);
    one.all(at) catch |err| {
        std.debug.print("seed {d}, crash at change {d}: {t}\n", .{ seed, at, err });
        return err;
    };
    return one.store.changes;
}

test "thousands of worlds, each with crashes, full disks and failed syncs of its own" {
    for (0..worlds.count(12_000, 20, "VELO_LIVE_RUNS")) |turn| _ = try worlds.run(run, worlds.first_seed() + turn, null);
}

test "a crash at every change of some worlds" {
    for (0..worlds.crash_count(12)) |turn| {
        for (0..250) |at| _ = try worlds.run(run, worlds.first_seed() + turn, at);
    }
}

/// Opens a reader between two changes of a first write, and does a first write between two looks of a reader.
const First = struct {
    allocator: std.mem.Allocator,
    store: SimulatedStore,
    seed: u64,

    fn write(self: *First) !void {
        var diagnostic: live_room.Diagnostic = .{};
        var live = try Live.open(self.allocator, &self.store, .{ .writable = true, .seed = self.seed }, &diagnostic);
        defer live.deinit();
        try attached(&live, &diagnostic);
        for (0..3) |row| {
            _ = try live.delete(.{ .numbers = numbers[row..][0..1] }, &diagnostic);
            try live.checkpoint(&diagnostic);
        }
        self.store.kill();
    }

    fn read(self: *First) !void {
        var diagnostic: live_room.Diagnostic = .{};
        var live = try Live.open(self.allocator, &self.store, .{}, &diagnostic);
        defer live.deinit();
        try attached(&live, &diagnostic);
        _ = try live.refresh(&diagnostic);
        var moment = try live_room.Moment(SimulatedStore).take(self.allocator, &self.store, &diagnostic) orelse return;
        moment.release();
    }

    fn read_between(store: *SimulatedStore) void {
        const self: *First = @fieldParentPtr("store", store);
        self.read() catch |err| std.debug.panic("after {d} changes: {t}", .{ store.changes, err });
        store.on_change = .{ .call = read_between };
    }

    fn write_between(store: *SimulatedStore) void {
        const self: *First = @fieldParentPtr("store", store);
        self.write() catch |err| std.debug.panic("{t}", .{err});
    }
};

test "a reader opens, refreshes and takes a moment at every step of a first write, and the other way round" {
    for (0..64) |at| {
        var one: First = .{ .allocator = std.testing.allocator, .store = .init(std.heap.c_allocator, at), .seed = at };
        defer one.store.deinit();
        try make_index(one.allocator, &one.store);
        if (at == 0) {
            one.store.on_change = .{ .call = First.read_between };
            try one.write();
        } else {
            one.store.on_read = .{ .call = First.write_between, .after = at };
            try one.read();
        }
    }
}

/// From then on the syncs of a folder that has a manifest fail.
fn fail_once_live(store: *SimulatedStore) void {
    if (store.names.contains(live_room.manifest.file_name)) store.faults.sync = 1;
}

test "old names stay until the root is there for good, where the sync of its rename had failed" {
    const allocator = std.testing.allocator;
    for (0..15) |seed| for (0..8) |at| {
        var store: SimulatedStore = .init(std.heap.c_allocator, seed);
        defer store.deinit();
        try make_index(allocator, &store);
        var diagnostic: live_room.Diagnostic = .{};
        {
            store.on_sync = fail_once_live;
            var live = try Live.open(allocator, &store, .{ .writable = true, .seed = 1 }, &diagnostic);
            defer live.deinit();
            try attached(&live, &diagnostic);
            try std.testing.expectError(error.Io, live.delete(.{ .numbers = numbers[0..1] }, &diagnostic));
            try std.testing.expect(live.poisoned);
        }
        store.on_sync = null;
        store.faults = .{};
        store.kill();
        store.crash_at = store.changes + at;
        if (Live.open(allocator, &store, .{ .writable = true, .seed = 1 }, &diagnostic)) |opened| {
            var live = opened;
            attached(&live, &diagnostic) catch {};
            live.deinit();
        } else |_| {}
        store.crashed = true;
        try store.restart();
        check_files(&store, false) catch |err| {
            std.debug.print("seed {d}, crash at change {d}: {t}\n", .{ seed, at, err });
            return err;
        };
    };
}
