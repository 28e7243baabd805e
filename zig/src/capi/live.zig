//! velo_live of velo.h: the changes of an index, and who may make them.
const std = @import("std");
const base = @import("base");
const filter_room = @import("filter");
const live_room = @import("live");
const common = @import("common.zig");
const errors = @import("errors.zig");
const fail = common.fail;
const ok = common.ok;
const Folder = live_room.Live(live_room.FolderStore);
const Diagnostic = live_room.Diagnostic;

/// How long a write may wait for its sync with `VELO_DURABILITY_INTERVAL`.
const interval_ns = 100 * std.time.ns_per_ms;

pub const LiveOptions = extern struct {
    struct_size: u32 = @sizeOf(LiveOptions),
    writable: i32 = 0,
    durability: i32 = 0,
    reserved: u32 = 0,
    checkpoint_bytes: u64 = 0,
};

pub const IdColumn = extern struct {
    struct_size: u32 = @sizeOf(IdColumn),
    is_string: i32 = 0,
    count: u64 = 0,
    numbers: ?[*]const i64 = null,
    offsets: ?[*]const i64 = null,
    bytes: ?[*]const u8 = null,
    bytes_size: u64 = 0,
};

pub const LiveDone = extern struct {
    struct_size: u32 = @sizeOf(LiveDone),
    durable: i32 = 0,
    rows: u64 = 0,
    sequence: u64 = 0,
};

pub const LiveInfo = extern struct {
    struct_size: u32 = @sizeOf(LiveInfo),
    is_live: i32 = 0,
    is_writable: i32 = 0,
    part_count: u32 = 0,
    generation: u64 = 0,
    sequence: u64 = 0,
    rows: u64 = 0,
    dead_rows: u64 = 0,
    log_bytes: u64 = 0,
    log_synced_bytes: u64 = 0,
};

pub const LiveHandle = struct {
    process: i32,
    store: live_room.FolderStore,
    live: Folder,
    /// Syncs now and then what nobody waits for.
    syncer: ?std.Thread = null,
    stop: std.Thread.ResetEvent = .{},

    fn sync_now_and_then(self: *LiveHandle) void {
        while (true) {
            if (self.stop.timedWait(interval_ns)) return else |_| {}
            var diagnostic: Diagnostic = .{};
            self.live.sync(&diagnostic) catch return; // poisoned: the next write says so
        }
    }
};

pub const verify = live_room.verify;

pub fn fail_live(err: live_room.Error, diagnostic: *const Diagnostic) i32 {
    return switch (err) {
        error.Busy => fail(.busy, .{}, "{s}", .{diagnostic.message()}),
        else => |other| common.fail_index(other, diagnostic),
    };
}

fn refused(self: *const LiveHandle) ?i32 {
    return if (self.process != common.process()) common.forked() else null;
}

export fn velo_live_open(path: ?[*:0]const u8, options: ?*const LiveOptions, live_out: ?*?*LiveHandle) i32 {
    const folder = path orelse return common.null_argument("path");
    const given = options orelse return common.null_argument("options");
    const out = live_out orelse return common.null_argument("live_out");
    const o = common.versioned(LiveOptions, given) orelse return common.size_error("options", given.struct_size);
    if (o.durability < 0 or o.durability > 2) return fail(.invalid_argument, .{ .argument = "durability" }, "durability {d} is unknown", .{o.durability});
    const self = common.allocator.create(LiveHandle) catch return common.out_of_memory();
    const status = open(self, std.mem.span(folder), o);
    if (status != ok) {
        common.allocator.destroy(self);
        return status;
    }
    out.* = self;
    return ok;
}

fn open(self: *LiveHandle, path: []const u8, o: LiveOptions) i32 {
    var diagnostic: Diagnostic = .{};
    self.* = .{ .process = common.process(), .store = undefined, .live = undefined };
    self.store = live_room.FolderStore.open(path) catch |err| {
        if (err == error.FileNotFound or err == error.NotDir) return fail(.not_an_index, .{ .argument = "path" }, "{s} is no folder", .{path});
        return fail(.io, .{ .argument = "path" }, "cannot open {s}: {t}", .{ path, err });
    };
    const live_options: live_room.Options = .{
        .writable = o.writable != 0,
        .durability = @enumFromInt(o.durability),
        .checkpoint_bytes = o.checkpoint_bytes,
    };
    self.live = Folder.open(common.allocator, &self.store, live_options, &diagnostic) catch |err| {
        self.store.deinit();
        return fail_live(err, &diagnostic);
    };
    return ok;
}

export fn velo_live_part(handle: ?*LiveHandle, part: u32, path_out: ?[*]u8, capacity: u64) i32 {
    const self = handle orelse return common.null_argument("live");
    const out = path_out orelse return common.null_argument("path_out");
    if (refused(self)) |status| return status;
    self.live.mutex.lock();
    defer self.live.mutex.unlock();
    const parts = self.live.parts.items;
    if (part >= parts.len) return fail(.invalid_argument, .{ .argument = "part" }, "part {d} of {d}", .{ part, parts.len });
    const path = parts[part].path;
    if (capacity <= path.len) return fail(.invalid_argument, .{ .argument = "capacity" }, "the path takes {d} bytes", .{path.len + 1});
    common.put_text(out[0..@intCast(capacity)], path);
    return ok;
}

fn ids_of(column: ?*const IdColumn) ?live_room.Ids {
    const given = common.versioned(IdColumn, column orelse return null) orelse return null;
    const count: usize = @intCast(given.count);
    if (given.is_string == 0) return .{ .numbers = if (given.numbers) |numbers| numbers[0..count] else if (count == 0) &.{} else return null };
    const offsets = given.offsets orelse return null;
    const bytes: []const u8 = if (given.bytes) |bytes| bytes[0..@intCast(given.bytes_size)] else &.{};
    const ids: live_room.Ids = .{ .strings = .{ .offsets = offsets[0 .. count + 1], .bytes = bytes } };
    return if (ids.is_whole()) ids else null;
}

fn bad_ids() i32 {
    return fail(.invalid_argument, .{ .argument = "ids" }, "ids are NULL, or their offsets do not ascend within their bytes", .{});
}

export fn velo_live_attach(handle: ?*LiveHandle, part: u32, ids: ?*const IdColumn) i32 {
    const self = handle orelse return common.null_argument("live");
    if (refused(self)) |status| return status;
    const column = ids_of(ids) orelse return bad_ids();
    if (part >= self.live.parts.items.len) return fail(.invalid_argument, .{ .argument = "part" }, "part {d} of {d}", .{ part, self.live.parts.items.len });
    var diagnostic: Diagnostic = .{};
    self.live.attach(part, column, &diagnostic) catch |err| return fail_live(err, &diagnostic);
    return ok;
}

export fn velo_live_begin(handle: ?*LiveHandle) i32 {
    const self = handle orelse return common.null_argument("live");
    if (refused(self)) |status| return status;
    for (self.live.parts.items) |part| if (part.ids == null) return fail(.invalid_argument, .{ .argument = "live" }, "a part has no ids attached", .{});
    var diagnostic: Diagnostic = .{};
    self.live.begin(&diagnostic) catch |err| return fail_live(err, &diagnostic);
    if (self.live.options.writable and self.live.options.durability == .interval)
        self.syncer = std.Thread.spawn(.{ .stack_size = 256 << 10 }, LiveHandle.sync_now_and_then, .{self}) catch return common.out_of_memory();
    return ok;
}

fn tell(out: ?*LiveDone, done: live_room.Done) void {
    const target = out orelse return;
    common.write_versioned(LiveDone, target, &.{ .durable = @intFromBool(done.durable), .rows = done.rows, .sequence = done.sequence });
}

fn begun(handle: ?*LiveHandle) ?*LiveHandle {
    const self = handle orelse return null;
    return if (self.live.begun) self else null;
}

fn not_begun() i32 {
    return fail(.invalid_argument, .{ .argument = "live" }, "live is NULL, or was not begun", .{});
}

export fn velo_live_delete(handle: ?*LiveHandle, ids: ?*const IdColumn, done_out: ?*LiveDone) i32 {
    const self = begun(handle) orelse return not_begun();
    if (refused(self)) |status| return status;
    const column = ids_of(ids) orelse return bad_ids();
    var diagnostic: Diagnostic = .{};
    tell(done_out, self.live.delete(column, &diagnostic) catch |err| return fail_live(err, &diagnostic));
    return ok;
}

export fn velo_live_delete_vertices(handle: ?*LiveHandle, part: u32, vertices: ?[*]const u32, vertex_count: u64, done_out: ?*LiveDone) i32 {
    const self = begun(handle) orelse return not_begun();
    if (refused(self)) |status| return status;
    const rows = if (vertices) |all| all[0..@intCast(vertex_count)] else if (vertex_count == 0) &[_]u32{} else return common.null_argument("vertices");
    var diagnostic: Diagnostic = .{};
    tell(done_out, self.live.delete_vertices(part, rows, &diagnostic) catch |err| return fail_live(err, &diagnostic));
    return ok;
}

export fn velo_live_refresh(handle: ?*LiveHandle, changed_out: ?*i32) i32 {
    const self = begun(handle) orelse return not_begun();
    if (refused(self)) |status| return status;
    var diagnostic: Diagnostic = .{};
    const changed = self.live.refresh(&diagnostic) catch |err| return fail_live(err, &diagnostic);
    if (changed_out) |out| out.* = @intFromBool(changed);
    return ok;
}

export fn velo_live_rows(handle: ?*LiveHandle, part: u32, filter_out: ?*?*filter_room.Filter) i32 {
    const self = begun(handle) orelse return not_begun();
    const out = filter_out orelse return common.null_argument("filter_out");
    if (refused(self)) |status| return status;
    if (part >= self.live.parts.items.len) return fail(.invalid_argument, .{ .argument = "part" }, "part {d} of {d}", .{ part, self.live.parts.items.len });
    const n = self.live.parts.items[part].n;
    var set = base.BitSet.init(common.allocator, @intCast(n)) catch return common.out_of_memory();
    defer set.deinit(common.allocator);
    out.* = null;
    if (!self.live.copy_dead(part, &set)) return ok;
    set.invert();
    for (set.words) |*word| word.* = std.mem.nativeToLittle(u64, word.*);
    const bytes = std.mem.sliceAsBytes(set.words)[0..@intCast((n + 7) / 8)];
    out.* = filter_room.Filter.from_mask(common.allocator, bytes, n) catch return common.out_of_memory();
    return ok;
}

export fn velo_live_sync(handle: ?*LiveHandle) i32 {
    const self = begun(handle) orelse return not_begun();
    if (refused(self)) |status| return status;
    var diagnostic: Diagnostic = .{};
    self.live.sync(&diagnostic) catch |err| return fail_live(err, &diagnostic);
    return ok;
}

export fn velo_live_info_get(handle: ?*LiveHandle, info_out: ?*LiveInfo) i32 {
    const self = handle orelse return common.null_argument("live");
    const out = info_out orelse return common.null_argument("info_out");
    if (refused(self)) |status| return status;
    if (out.struct_size < 8) return common.size_error("info_out", out.struct_size);
    const info = self.live.info();
    common.write_versioned(LiveInfo, out, &.{
        .is_live = @intFromBool(info.is_live),
        .is_writable = @intFromBool(info.is_writable),
        .part_count = @intCast(info.parts),
        .generation = info.generation,
        .sequence = info.sequence,
        .rows = info.rows,
        .dead_rows = info.dead,
        .log_bytes = info.log_bytes,
        .log_synced_bytes = info.log_synced_bytes,
    });
    return ok;
}

export fn velo_live_close(handle: ?*LiveHandle) i32 {
    const self = handle orelse return ok;
    // In a child the lock is the parent's still, and so are the files.
    if (refused(self)) |_| return ok;
    self.stop.set();
    if (self.syncer) |thread| thread.join();
    var diagnostic: Diagnostic = .{};
    const failure = self.live.finish(&diagnostic);
    self.live.deinit();
    self.store.deinit();
    common.allocator.destroy(self);
    failure catch |err| return fail_live(err, &diagnostic);
    return ok;
}

test "a handle is asked for what it has, and refused what it has not" {
    var handle: ?*LiveHandle = null;
    try std.testing.expectEqual(5, velo_live_open("/nonexistent", &.{}, &handle));
    try std.testing.expectEqual(1, velo_live_open("/", &.{ .durability = 3 }, &handle));
    try std.testing.expectEqual(null, handle);
    var done: LiveDone = .{};
    try std.testing.expectEqual(1, velo_live_delete(null, &.{}, &done));
    try std.testing.expectEqual(0, velo_live_close(null));
    var found = errors.Error{};
    try std.testing.expectEqual(0, errors.velo_last_error(&found));
    const offsets = [_]i64{ 0, 3, 2 };
    try std.testing.expectEqual(null, ids_of(&.{ .is_string = 1, .count = 2, .offsets = &offsets, .bytes = "abc", .bytes_size = 3 }));
    try std.testing.expectEqual(null, ids_of(&.{ .count = 2 }));
    try std.testing.expectEqual(0, ids_of(&.{}).?.len());
}
