//! Processes that read and write one folder, each of which may be killed at any operation, on a disk that may fill up, fail to
//! sync, or lose its power. Whenever one of them uses the disk another may come in between with a whole call of its own.
//!
//! Whatever happens: what was acknowledged is seen by every search that begins later, and is there after a crash if it was
//! acknowledged as durable; a call is there wholly or not at all; no id has two rows, and no row number is given twice.
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const live_room = @import("live");
const handle_file = @import("handle.zig");
const model_file = @import("model.zig");
const sim_store = @import("store.zig");
const worlds = @import("worlds.zig");
const Handle = handle_file.Handle;
const Live = handle_file.Live;
const Model = model_file.Model;
const Op = model_file.Op;
const SegmentRow = handle_file.SegmentRow;
const SimulatedDisk = sim_store.SimulatedDisk;
const SimulatedStore = sim_store.SimulatedStore;
const State = model_file.State;
const call_max = model_file.call_max;
const slots = model_file.slots;
const testing = std.testing;

const process_max = 4;
/// Ids, where the index does not give them.
const id_count = 24;
const large_max = 8;
const depth_max = 3;
const columns_max = 64;

/// A call that writes, while it runs.
const Call = struct {
    op: *const Op,
    /// It had the lock, and this is what it found there.
    found: ?struct { state: State, sequence: u64 } = null,
    /// Its change.
    written: ?u64 = null,
    /// The first number, where the index gives them.
    first: u64 = 0,
};

/// Commits, and those that failed.
const Commits = struct { u64, u64 };

const Process = struct {
    is_writer: bool,
    handle: ?*Handle = null,
    /// It is in the middle of something.
    is_busy: bool = false,
    call: ?Call = null,
    /// The last change when it gave the lock back.
    unlocked_at: u64 = 0,
    was_poisoned: bool = false,
    /// Numbers that its call asks for, and the first, if no row and no other call had them.
    reserves: u64 = 0,
    reserved: ?u64 = null,
    acknowledged: u64 = 0,
    /// Commits when it followed last: a view may lack later ones.
    commits_seen: u64 = 0,
    /// It looked at the folder where there was no page to tell what waits for a sync.
    was_blind: bool = false,
    /// Failed commits when it opened the folder: later ones may be there, and nothing tells it of them.
    failed_commits_seen: u64 = 0,
    /// Seen where there was no page.
    shown: u64 = 0,
};

pub const World = struct {
    allocator: std.mem.Allocator,
    /// Of what calls ask for.
    arena: std.heap.ArenaAllocator,
    disk: SimulatedDisk,
    prng: base.Prng,
    model: Model,
    processes: []Process,
    /// The index gives the ids.
    is_numbered: bool,
    built: live_room.Built,
    /// Rows with which the folder was built; 0: it was made without.
    built_rows: u16,
    /// Another process comes in between at one of this many operations; 0: at none.
    nesting: u64,
    depth: u32 = 0,
    /// Only the world itself looks.
    is_quiet: bool = false,
    failure: ?anyerror = null,
    next_value: u16 = 1,
    /// The page was deleted: time passes before each check.
    page_deletions: u64 = 0,
    /// A write was acknowledged.
    wrote: bool = false,
    /// Commits that changed which rows have which places.
    commits: u64 = 0,
    /// Those that may be there nonetheless.
    failed_commits: u64 = 0,
    /// Columns that are there for good, and those that may be: the schema is as many bytes.
    columns: usize = 0,
    columns_tried: usize = 0,
    column_calls: u64 = 0,
    /// Calls that came in between.
    nested: u64 = 0,
    kills: u64 = 0,

    fn tell(self: *const World, comptime text: []const u8, args: anytype) void {
        if (self.disk.tells) std.debug.print("{d}: " ++ text ++ "\n", .{self.depth} ++ args);
    }

    fn number_of(self: *const World, process: *const Process) usize {
        return (@intFromPtr(process) - @intFromPtr(self.processes.ptr)) / @sizeOf(Process);
    }

    fn of(disk: *SimulatedDisk) *World {
        return @fieldParentPtr("disk", disk);
    }

    // ---- what happens between two operations ----

    fn on_event(disk: *SimulatedDisk, store: *SimulatedStore, event: SimulatedDisk.Event) void {
        const self = of(disk);
        if (self.is_quiet or self.failure != null) return;
        self.between_operations(store, event) catch |err| {
            if (@errorReturnTrace()) |trace| std.debug.dumpStackTrace(trace.*);
            self.failure = err;
        };
    }

    fn between_operations(self: *World, store: *SimulatedStore, event: SimulatedDisk.Event) !void {
        const handle: *Handle = @alignCast(@fieldParentPtr("store", store));
        const process = for (self.processes) |*one| {
            if (one.handle == handle) break one;
        } else null;
        if (process) |one| switch (event) {
            .unlock => try self.note_unlock(one),
            // While the device takes its time a search waits for nothing.
            .sync => try self.check(one, 0),
            else => {},
        };
        if (self.nesting == 0 or self.depth >= depth_max) return;
        const odds = switch (event) {
            .lock, .unlock, .sync => @max(2, self.nesting / 8),
            else => self.nesting,
        };
        if (self.prng.below(odds) > 0) return;
        if (self.prng.below(40) == 0) return self.delete_page();
        const other = &self.processes[@intCast(self.prng.below(self.processes.len))];
        if (other.is_busy) return;
        self.nested += 1;
        try self.step(other);
    }

    fn delete_page(self: *World) !void {
        self.tell("the page is deleted", .{});
        self.page_deletions += 1;
        try self.disk.remove_by_hand(live_room.page.file_name);
    }

    /// With the lock held: what the call did is decided.
    fn note_unlock(self: *World, process: *Process) !void {
        const live = &process.handle.?.live;
        process.unlocked_at = self.model.sequence;
        if (process.call) |*call| if (call.found == null) {
            const before = self.model.now();
            call.found = .{ .state = before.*, .sequence = self.model.sequence };
            call.first = self.first_of(call, live);
            if (live.sequence == self.model.sequence + 1) {
                if (!call.op.changes(before)) return error.WroteWithoutCause;
                if (call.op.is_numbered and call.op.reserved == null and call.first < self.model.next_row) return error.NumberGivenTwice;
                try self.model.write(&call.op.after(before, call.first), .{
                    .waits = live.options.durability == .sync,
                    .node = process.handle.?.store.node_of_file(live.wal.?),
                    .end = live.position.offset,
                    .next_row = if (call.op.is_numbered) call.first + call.op.count() else 0,
                });
                process.unlocked_at = self.model.sequence;
                call.written = self.model.sequence;
                self.tell("{d} writes {d}", .{ self.number_of(process), self.model.sequence });
            } else try self.note_attempt(call);
        };
        if (process.reserves > 0) {
            const first = live.next_row -| process.reserves;
            process.reserved = if (first >= self.model.next_row) first else null;
            if (process.reserved != null) self.model.next_row = live.next_row;
            process.reserves = 0;
        }
        if (live.poisoned and !process.was_poisoned) {
            process.was_poisoned = true;
            try self.observe(live.options.durability == .sync);
        }
        if (live.sequence > self.model.sequence) return error.NeverWritten;
    }

    /// The number that its first row gets, whether the record is written by now or not.
    fn first_of(self: *const World, call: *const Call, live: *const Live) u64 {
        if (call.op.reserved) |first| return first;
        return if (live.sequence > self.model.sequence) live.next_row -| call.op.count() else live.next_row;
    }

    /// What fails may be there after a crash.
    fn note_attempt(self: *World, call: *const Call) !void {
        const state = self.model.now();
        if (!call.op.changes(state)) return;
        if (call.op.is_numbered and call.first + call.op.count() > slots) return;
        try self.model.may_become(&call.op.after(state, call.first));
    }

    /// A process ends in the middle of what it does.
    fn bury(self: *World, process: *Process) !void {
        const handle = process.handle.?;
        const waits = handle.live.options.durability == .sync;
        const had_lock = handle.store.had_lock;
        try self.note_end(process);
        self.close(process);
        self.kills += 1;
        self.tell("{d} is gone", .{self.number_of(process)});
        if (had_lock) try self.observe(waits);
    }

    fn note_end(self: *World, process: *Process) !void {
        const call = if (process.call) |*one| one else return;
        const handle = process.handle.?;
        if (call.found != null or self.disk.lock_holder != &handle.store) return;
        call.first = self.first_of(call, &handle.live);
        try self.note_attempt(call);
    }

    fn close(self: *World, process: *Process) void {
        const handle = process.handle.?;
        process.handle = null;
        process.call = null;
        handle.close();
        self.allocator.destroy(handle);
    }

    /// Looks at the folder as it is, beside all processes: of a call that ended in the middle all is there, or nothing.
    fn observe(self: *World, waits: bool) !void {
        var handle: Handle = undefined;
        try self.open_observer(&handle);
        defer self.close_observer(&handle);
        const view = try handle.live.take_view();
        defer view.release();
        const state = try handle.state_of(view, null);
        const log = if (handle.live.wal_name) |name| self.disk.names.get(name).? else 0;
        self.tell("there is {d}", .{view.sequence});
        _ = try self.model.see(view.sequence, &state, .{ .waits = waits, .node = log, .end = handle.live.position.offset, .next_row = if (self.is_numbered) model_file.rows_end(&state) else 0 });
    }

    fn open_observer(self: *World, handle: *Handle) !void {
        std.debug.assert(!self.is_quiet);
        self.is_quiet = true;
        errdefer self.is_quiet = false;
        handle.open(self.allocator, .{ .disk = &self.disk, .ignores_page = true }, .{}, self.built) catch |err| {
            std.debug.print("the folder cannot be read: {s}\n", .{handle.diagnostic.message()});
            return err;
        };
    }

    fn close_observer(self: *World, handle: *Handle) void {
        handle.close();
        self.is_quiet = false;
    }

    /// The power goes, and comes back.
    fn cut_power(self: *World) !void {
        for (self.processes) |*process| if (process.handle != null) {
            try self.note_end(process);
            self.close(process);
        };
        try self.disk.restart();
        try self.check_files();
        var handle: Handle = undefined;
        try self.open_observer(&handle);
        defer self.close_observer(&handle);
        const view = try handle.live.take_view();
        defer view.release();
        const state = try handle.state_of(view, null);
        self.tell("the power went: there is {d}, of {d}, {d} for certain", .{ view.sequence, self.model.sequence, self.model.durable });
        try self.model.settle(view.sequence, &state);
        if (self.prng.boolean()) self.disk.crash_at = self.disk.changes + self.prng.below(300);
    }

    /// An ordinary index lies where the manifest says, or where it always lay, and never at both places once a write was
    /// acknowledged.
    fn check_files(self: *World) !void {
        const is_written = self.disk.names.contains(live_room.manifest.file_name);
        if (self.wrote and !is_written) return error.ManifestLost;
        if (self.wrote and self.disk.names.contains(layout.manifest.file_name)) return error.OlderVeloFindsIt;
        if (!is_written and !self.disk.names.contains(handle_file.data_name)) return error.FileLost;
    }

    // ---- what processes see ----

    /// Without a look at the disk: `least` is seen, and nothing that waits for a sync.
    fn check(self: *World, process: *Process, least: u64) !void {
        const handle = process.handle.?;
        const view = try handle.live.take_view();
        defer view.release();
        const state = try handle.state_of(view, null);
        // Another process may be about to make a new page.
        const is_late = self.page_deletions > 0 and (self.disk.lock_holder != null or self.disk.faults.full > 0);
        if (view.sequence < @max(if (is_late) 0 else least, process.acknowledged)) {
            self.tell("{d} sees {d}, not {d}: {s}, page {any}", .{ self.number_of(process), view.sequence, least, if (process.is_writer) "writer" else "reader", handle.live.page });
            return error.AcknowledgedNotSeen;
        }
        if (view.sequence <= self.model.sequence) {
            if (!std.mem.eql(u16, self.model.state_at(view.sequence), &state)) return error.HalfSeen;
        } else if (!self.is_being_written(view.sequence, &state)) return error.NeverWritten;
        // Without a page a handle shows what it finds.
        if (process.was_blind or !self.has_page(&handle.live)) process.shown = @max(process.shown, view.sequence);
        if (view.sequence > process.shown) self.check_synced(view.sequence) catch |err| {
            self.tell("{d} sees {d} too early, {d} is synced, page {any}", .{ self.number_of(process), view.sequence, self.model.synced, handle.live.page });
            return err;
        };
    }

    fn has_page(self: *const World, live: *const Live) bool {
        const page = live.page orelse return false;
        return !live.lost_page and page.is_valid(self.disk.boot_id) and page.generation.raw == live.generation;
    }

    /// The call that has the lock wrote its record, and has not given the lock back.
    fn is_being_written(self: *World, sequence: u64, state: *const State) bool {
        if (sequence != self.model.sequence + 1) return false;
        for (self.processes) |*process| {
            const call = if (process.call) |*one| one else continue;
            if (call.found != null or self.disk.lock_holder != &process.handle.?.store) continue;
            const first = if (call.op.is_numbered) std.mem.indexOfScalar(u16, state, call.op.values[0]) orelse return false else 0;
            return std.mem.eql(u16, state, &call.op.after(self.model.now(), first));
        }
        return false;
    }

    fn check_synced(self: *World, sequence: u64) !void {
        const model = &self.model;
        while (model.synced < @min(sequence, model.sequence)) : (model.synced += 1) {
            const written = &model.entry_at(model.synced + 1).written;
            if (!written.waits or self.disk.is_durable(written.node, written.end)) continue;
            if (try self.durable_sequence() <= model.synced) return error.ShownTooEarly;
        }
    }

    /// The last change that the manifest holds which a crash leaves.
    fn durable_sequence(self: *World) !u64 {
        const node = self.disk.durable_names.get(live_room.manifest.file_name) orelse return 0;
        const text = self.disk.nodes.items[node].durable.items;
        return (try live_room.manifest.parse(self.arena.allocator(), text)).sequence;
    }

    fn follow(self: *World, process: *Process) !void {
        const handle = process.handle.?;
        const least = self.model.acknowledged;
        const columns = self.columns;
        const commits = self.commits;
        process.was_blind = process.was_blind or !self.has_page(&handle.live);
        while (true) {
            const deletions = self.page_deletions;
            const changes = if (handle.live.page) |page| page.changes.load(.acquire) else null;
            if (changes == null or changes != handle.changes_seen or deletions > 0) {
                if (try handle.live.refresh(&handle.diagnostic) == .moved) return self.open_again(process);
                handle.changes_seen = changes;
            }
            if (deletions == self.page_deletions) break; // else the next look sees it
        }
        process.commits_seen = commits;
        try self.check(process, least);
        process.was_blind = false;
        try self.check_columns(process, columns);
    }

    fn check_columns(self: *const World, process: *Process, least: usize) !void {
        const found = if (process.handle.?.live.schema) |text| text.len else 0;
        if (found < least or found > self.columns_tried) return error.ColumnsLost;
    }

    fn follow_all(self: *World) !void {
        for (self.processes) |*process| {
            if (process.handle == null) continue;
            process.is_busy = true;
            defer process.is_busy = false;
            self.follow(process) catch |err| try self.may_fail(&process.handle.?.store, err);
            if (self.failure) |err| return err;
            if (self.disk.crashed) return;
        }
    }

    // ---- steps ----

    fn step(self: *World, process: *Process) anyerror!void {
        const is_inside = process.is_busy;
        process.is_busy = true;
        defer process.is_busy = is_inside;
        self.depth += 1;
        defer self.depth -= 1;
        self.tell("{d} begins", .{self.number_of(process)});
        self.act(process, is_inside) catch |err| {
            self.tell("{d} fails: {t}", .{ self.number_of(process), err });
            if (self.disk.tells) if (@errorReturnTrace()) |trace| std.debug.dumpStackTrace(trace.*);
            if (self.failure) |first| return first;
            const handle = process.handle orelse return err;
            self.may_fail(&handle.store, err) catch |bad| {
                std.debug.print("{s}\n", .{handle.diagnostic.message()});
                return bad;
            };
        };
        if (self.disk.crashed) return;
        const handle = process.handle orelse return;
        if (handle.store.is_dead) return self.bury(process);
        handle.store.kill_in = std.math.maxInt(u64);
        process.call = null;
    }

    /// A failure is all right where the world is what fails.
    fn may_fail(self: *World, store: *const SimulatedStore, err: anyerror) !void {
        if (self.disk.crashed or store.is_dead) return;
        switch (err) {
            error.Busy => if (store.timed_out) return,
            error.Io, error.NoSpace, error.NoSpaceLeft, error.InputOutput => if (self.disk.faults.full > 0 or self.disk.faults.sync > 0) return,
            else => {},
        }
        return err;
    }

    fn open(self: *World, process: *Process) !void {
        const handle = try self.allocator.create(Handle);
        if (try self.open_handle(process, handle)) return self.adopt(process, handle);
        self.allocator.destroy(handle);
    }

    fn adopt(self: *World, process: *Process, handle: *Handle) !void {
        process.handle = handle;
        process.was_poisoned = false;
        process.acknowledged = 0;
        process.shown = 0;
        process.was_blind = self.page_deletions + self.kills > 0; // it read what there was before there was a page
        try self.follow(process);
    }

    /// False: the world failed.
    fn open_handle(self: *World, process: *Process, handle: *Handle) !bool {
        const options: live_room.Options = .{
            .writable = process.is_writer,
            .durability = @enumFromInt(self.prng.below(3)),
            .checkpoint_bytes = 64 + self.prng.below(3000),
            .delta_bytes = 500 + self.prng.below(12000),
            .seed = self.prng.next(),
        };
        const kill_in = if (self.prng.below(12) == 0) 1 + self.prng.below(80) else std.math.maxInt(u64);
        process.failed_commits_seen = self.failed_commits;
        while (true) {
            const before = self.disk.names.get(live_room.manifest.file_name);
            handle.open(self.allocator, .{ .disk = &self.disk, .kill_in = kill_in }, options, self.built) catch |err| {
                if (self.failure) |bad| return bad;
                if (handle.store.is_dead and !self.disk.crashed) {
                    self.kills += 1;
                    if (handle.store.had_lock) try self.observe(false);
                }
                self.may_fail(&handle.store, err) catch |bad| {
                    // Another manifest took the place of the one that it was reading.
                    if (before != self.disk.names.get(live_room.manifest.file_name)) continue;
                    std.debug.print("{s}\n", .{handle.diagnostic.message()});
                    return bad;
                };
                return false;
            };
            handle.store.kill_in = std.math.maxInt(u64);
            return true;
        }
    }

    /// The folder has other segments than the handle has open.
    fn open_again(self: *World, process: *Process) anyerror!void {
        const handle = try self.allocator.create(Handle);
        const is_open = self.open_handle(process, handle) catch |err| {
            self.allocator.destroy(handle);
            return err;
        };
        if (self.disk.crashed) {
            if (is_open) handle.close();
            return self.allocator.destroy(handle);
        }
        // What it makes is not yet in any manifest.
        if (is_open) for (process.handle.?.live.held.items) |one| try keep_holding(&handle.live, one.path);
        self.close(process);
        if (is_open) return self.adopt(process, handle);
        self.allocator.destroy(handle);
    }

    /// The library holds a folder that it makes through the former handle, which lives as long.
    fn keep_holding(live: *Live, path: []const u8) !void {
        const hold = live.store.hold(path) catch return;
        try live.held.append(live.allocator, .{ .path = try live.allocator.dupe(u8, path), .hold = hold });
    }

    /// In the middle of a longer work of the process only what does not end it: `is_inside`.
    fn act(self: *World, process: *Process, is_inside: bool) !void {
        const handle = process.handle orelse return self.open(process);
        if (self.prng.below(12) == 0) handle.store.kill_in = 1 + self.prng.below(50);
        const live = &handle.live;
        const diagnostic = &handle.diagnostic;
        if (!process.is_writer) return switch (self.prng.below(6)) {
            0 => self.take_moment(process),
            1 => if (!is_inside) self.close(process),
            else => self.follow(process),
        };
        switch (self.prng.below(30)) {
            0 => {
                try live.checkpoint(diagnostic);
                try handle.store.expect_alive();
                if (!live.moved) self.keep(process, process.unlocked_at);
            },
            1 => {
                const sequence = live.sequence;
                try live.sync(diagnostic);
                try handle.store.expect_alive();
                self.keep(process, sequence);
            },
            2 => try live.sweep(diagnostic),
            3 => try self.add_columns(process),
            4 => try self.take_moment(process),
            5 => if (!is_inside) {
                const sequence = live.sequence;
                if (self.prng.boolean()) {
                    try live.finish(diagnostic);
                    try handle.store.expect_alive();
                    // Of a call that failed its caller knows.
                    if (!live.poisoned) self.keep(process, sequence);
                }
                self.close(process);
            },
            6, 7 => try self.commit(process),
            8, 9 => try self.insert_segment(process),
            10...12 => try self.delete(process),
            13, 14 => try self.update(process),
            15, 16, 17 => try self.insert(process, .insert),
            18, 19 => try self.follow(process),
            else => try self.insert(process, .upsert),
        }
    }

    /// A call that writes none says that all up to this change is durable.
    fn keep(self: *World, process: *const Process, sequence: u64) void {
        self.tell("{d} keeps {d}", .{ self.number_of(process), sequence });
        self.model.acknowledge(0, sequence);
    }

    fn take_moment(self: *World, process: *Process) !void {
        const handle = process.handle.?;
        const found = try live_room.Moment(SimulatedStore).take(self.allocator, &handle.store, &handle.diagnostic);
        var moment = found orelse return if (self.wrote) error.ManifestLost;
        defer moment.release();
        try moment.check(self.allocator, &handle.diagnostic);
    }

    fn add_columns(self: *World, process: *Process) !void {
        const handle = process.handle.?;
        const live = &handle.live;
        const text = "c" ** columns_max;
        const count = (if (live.schema) |columns| columns.len else 0) + 1;
        if (count > text.len) return;
        const was_tried = self.columns_tried >= count;
        self.columns_tried = @max(self.columns_tried, count);
        self.column_calls += 1;
        const calls = self.column_calls;
        const done = try live.set_schema(text[0..count], live.schema_version, &handle.diagnostic);
        try handle.store.expect_alive();
        switch (done.outcome) {
            .moved => return self.open_again(process),
            .stale => return if (!was_tried and calls == self.column_calls) error.StaleWithoutCause,
            else => try testing.expectEqual(.done, done.outcome),
        }
        try testing.expect(done.durable);
        self.columns = @max(self.columns, count);
        self.wrote = true;
        self.keep(process, process.unlocked_at);
    }

    // ---- calls that write ----

    fn new_values(self: *World, count: usize) ![]const u16 {
        const values = try self.arena.allocator().alloc(u16, count);
        for (values) |*value| {
            value.* = self.next_value;
            self.next_value += 1;
        }
        return values;
    }

    /// Different ones; where the index gives them, such as have a row.
    fn some_ids(self: *World, most: usize) ![]const i64 {
        var candidates: [slots]i64 = undefined;
        var count: usize = 0;
        for (self.model.now(), 0..) |value, id| if (if (self.is_numbered) value != 0 else id < id_count) {
            candidates[count] = @intCast(id);
            count += 1;
        };
        self.prng.shuffle(i64, candidates[0..count]);
        return self.arena.allocator().dupe(i64, candidates[0..@min(count, @as(usize, @intCast(self.prng.below(most) + 1)))]);
    }

    fn may_number(self: *const World) bool {
        return self.model.next_row + 4 * large_max < slots;
    }

    fn insert(self: *World, process: *Process, kind: @FieldType(Op, "kind")) !void {
        const op = try self.new_op(.{ .kind = kind, .ids = &.{}, .is_numbered = self.is_numbered and kind == .insert });
        if (op.is_numbered) {
            if (!self.may_number()) return;
            op.values = try self.new_values(@intCast(self.prng.below(call_max) + 1));
        } else {
            op.ids = try self.some_ids(call_max);
            if (op.ids.len == 0) return;
            op.values = try self.new_values(op.ids.len);
        }
        const handle = process.handle.?;
        process.call = .{ .op = op };
        self.tell("{d}: {t} {any} {any}", .{ self.number_of(process), op.kind, op.ids, op.values });
        const rows = try self.rows_of(op);
        try self.answered(process, try handle.live.insert(rows, null, &handle.diagnostic));
    }

    /// It is needed as long as its call may have failed.
    fn new_op(self: *World, op: Op) !*Op {
        const own = try self.arena.allocator().create(Op);
        own.* = op;
        return own;
    }

    fn rows_of(self: *World, op: *const Op) !live_room.Rows {
        const vectors = try self.arena.allocator().alloc(f32, op.values.len);
        for (vectors, op.values) |*x, value| x.* = @floatFromInt(value);
        return .{
            .count = @intCast(op.values.len),
            .kind = if (self.is_numbered) .row else .numbers,
            .is_upsert = op.kind == .upsert or op.kind == .update,
            .ids = .{ .numbers = op.ids },
            .vectors = std.mem.sliceAsBytes(vectors),
        };
    }

    fn delete(self: *World, process: *Process) !void {
        const op = try self.new_op(.{ .kind = .delete, .ids = try self.some_ids(call_max) });
        if (op.ids.len == 0) return;
        const handle = process.handle.?;
        process.call = .{ .op = op };
        self.tell("{d}: {t} {any} {any}", .{ self.number_of(process), op.kind, op.ids, op.values });
        try self.answered(process, try handle.live.delete(.{ .numbers = op.ids }, null, &handle.diagnostic));
    }

    /// Rows are read and written anew, by who may come late: then nothing is done.
    fn update(self: *World, process: *Process) !void {
        const handle = process.handle.?;
        const live = &handle.live;
        const allocator = self.arena.allocator();
        const view = try live.take_view();
        defer view.release();
        var places: [slots]?live_room.Row = @splat(null);
        const state = try handle.state_of(view, &places);
        var ids: std.ArrayList(i64) = .empty;
        var rows: std.ArrayList(live_room.Row) = .empty;
        var expected: std.ArrayList(u16) = .empty;
        for (try self.some_ids(call_max)) |id| if (places[@intCast(id)]) |row| {
            try ids.append(allocator, id);
            try rows.append(allocator, row);
            try expected.append(allocator, state[@intCast(id)]);
        };
        if (ids.items.len == 0) return;
        if (self.prng.boolean() and !try self.others(process)) return;
        const op = try self.new_op(.{ .kind = .update, .ids = ids.items, .values = try self.new_values(ids.items.len), .expected = expected.items });
        process.call = .{ .op = op };
        self.tell("{d}: {t} {any} {any}", .{ self.number_of(process), op.kind, op.ids, op.values });
        const done = try live.update(try self.rows_of(op), .{ .layout = view.layout, .rows = rows.items }, null, &handle.diagnostic);
        try handle.store.expect_alive();
        if (done.outcome == .stale and view.layout != live.layout) return testing.expectEqual(null, process.call.?.written);
        try self.answered(process, done);
    }

    fn answered(self: *World, process: *Process, done: live_room.Done) !void {
        try process.handle.?.store.expect_alive();
        const call = &process.call.?;
        const op = call.op;
        const live = &process.handle.?.live;
        if (done.outcome == .moved) {
            try testing.expectEqual(null, call.written);
            return self.open_again(process);
        }
        if (done.outcome == .full) {
            try testing.expectEqual(null, call.written);
            return testing.expect(op.kind != .delete);
        }
        const found = call.found orelse return error.NoLock;
        const outcome = op.outcome(&found.state);
        try testing.expectEqualStrings(@tagName(outcome), @tagName(done.outcome));
        try testing.expectEqual(op.changes(&found.state), call.written != null);
        if (outcome != .done) return;
        const there = op.there(&found.state);
        if (op.kind == .delete) {
            try testing.expectEqual(there, done.rows);
        } else {
            try testing.expectEqual(op.count(), done.rows);
            try testing.expectEqual(there, done.replaced);
            if (op.is_numbered) try testing.expectEqual(call.first, done.row);
        }
        const sequence = call.written orelse found.sequence;
        if (call.written != null or op.kind != .delete) try testing.expectEqual(sequence, done.sequence);
        if (live.options.durability == .sync) try testing.expect(done.durable);
        self.model.acknowledge(sequence, if (done.durable) sequence else 0);
        process.acknowledged = sequence;
        self.tell("{d} acknowledged {d}, durable {}", .{ self.number_of(process), sequence, done.durable });
        self.wrote = self.wrote or call.written != null;
    }

    /// Whole steps of others, and of the same process; false: it is no more as it was.
    fn others(self: *World, process: *Process) !bool {
        const handle = process.handle.?;
        process.call = null;
        if (self.depth < depth_max) for (0..self.prng.below(4)) |_| {
            const other = if (self.prng.below(3) == 0) process else &self.processes[@intCast(self.prng.below(self.processes.len))];
            if (other != process and other.is_busy) continue;
            try self.step(other);
            if (self.failure) |err| return err;
            if (self.disk.crashed or process.handle != handle) return false;
        };
        return true;
    }

    /// A call whose rows are a segment of their own: others write and commit between its two steps. It has a name, and comes again.
    fn insert_segment(self: *World, process: *Process) anyerror!void {
        const handle = process.handle.?;
        const live = &handle.live;
        const allocator = self.arena.allocator();
        const is_upsert = !self.is_numbered and self.prng.boolean();
        if (self.is_numbered and !self.may_number()) return;
        const ids = if (self.is_numbered) &.{} else try self.some_ids(large_max);
        const count = if (self.is_numbered) @as(usize, @intCast(self.prng.below(large_max) + 1)) else ids.len;
        const values = try self.new_values(count);
        var given: live_room.Rows = .{
            .count = @intCast(count),
            .kind = if (self.is_numbered) .row else .numbers,
            .is_upsert = is_upsert,
            .ids = .{ .numbers = ids },
            .vectors = "",
            .request = try std.fmt.allocPrint(allocator, "large {d}", .{self.next_value}),
        };
        process.reserves = if (self.is_numbered) count else 0;
        process.reserved = null;
        const reserved = try live.reserve(given, null, &handle.diagnostic);
        try handle.store.expect_alive();
        switch (reserved.outcome) {
            .done => {},
            .moved => return self.open_again(process),
            else => return testing.expect(!is_upsert and !self.is_numbered and reserved.outcome == .duplicate),
        }
        self.wrote = true;
        if (self.is_numbered and process.reserved != reserved.row) return error.NumberGivenTwice;
        const rows = try allocator.alloc(SegmentRow, count);
        for (rows, values, 0..) |*row, value, i| row.* = .{ .id = if (self.is_numbered) @intCast(reserved.row + i) else ids[i], .value = value };
        self.prng.shuffle(SegmentRow, rows);
        const path = try self.new_segment(process);
        try self.write_segment(try self.goes_on(process, path) orelse return, path, rows);
        const op = try self.new_op(.{
            .kind = if (is_upsert) .upsert else .insert,
            .ids = ids,
            .values = values,
            .is_numbered = self.is_numbered,
            .reserved = if (self.is_numbered) reserved.row else null,
        });
        while (try self.goes_on(process, path)) |now| {
            process.call = .{ .op = op };
            self.tell("{d}: as a segment {any} {any}", .{ self.number_of(process), op.ids, op.values });
            try now.keep_rows(path, rows);
            const call: live_room.Call = .{ .rows = given, .first = reserved.row, .path = path, .uuid = path, .ids = .{ .numbers = try now.ids_of(rows) } };
            const done = now.live.insert_segment(call, null, &now.diagnostic) catch |err| {
                // Another process took the folder for abandoned, and numbers that no caller knew for lost.
                if (err == error.InvalidArgument and self.page_deletions > 0 and self.is_numbered) return;
                return err;
            };
            try self.answered(process, done);
            if (done.outcome == .moved) continue;
            if (done.outcome != .done) return;
            try testing.expect(done.durable);
            return self.repeat(process, &given, done.sequence);
        }
    }

    /// From whichever process it comes again.
    fn repeat(self: *World, process: *Process, given: *live_room.Rows, sequence: u64) !void {
        if (!try self.others(process)) return;
        const handle = process.handle.?;
        const again = try handle.live.reserve(given.*, null, &handle.diagnostic);
        try handle.store.expect_alive();
        if (again.outcome == .moved) return self.open_again(process);
        try testing.expectEqual(.repeated, again.outcome);
        try testing.expectEqual(sequence, again.sequence);
        given.vectors = std.mem.sliceAsBytes(try self.arena.allocator().alloc(f32, given.count));
        const once_more = try handle.live.insert(given.*, null, &handle.diagnostic);
        try handle.store.expect_alive();
        if (once_more.outcome == .moved) return self.open_again(process);
        try testing.expectEqual(.repeated, once_more.outcome);
    }

    /// Others come in between. The handle that holds the folder then; null: it is gone.
    fn goes_on(self: *World, process: *Process, path: []const u8) !?*Handle {
        if (process.handle == null or !try self.others(process) and self.disk.crashed) return null;
        return self.holder_of(process, path);
    }

    fn holder_of(_: *World, process: *Process, path: []const u8) ?*Handle {
        const handle = process.handle orelse return null;
        for (handle.live.held.items) |one| if (std.mem.eql(u8, one.path, path)) return handle;
        return null;
    }

    fn new_segment(self: *World, process: *Process) ![]const u8 {
        const handle = process.handle.?;
        var buffer: [32]u8 = undefined;
        return try self.arena.allocator().dupe(u8, try handle.live.next_segment(&buffer, &handle.diagnostic));
    }

    fn write_segment(_: *World, handle: *Handle, path: []const u8, rows: []const SegmentRow) !void {
        const store = &handle.store;
        var buffer: [64]u8 = undefined;
        const file = try store.create(try std.fmt.bufPrint(&buffer, "{s}/" ++ handle_file.data_name, .{path}));
        defer store.close(file);
        try store.write(file, std.mem.sliceAsBytes(rows), 0);
        try store.sync(file);
        try store.sync_folder(path);
    }

    // ---- commits ----

    /// A segment is made of some segments and the delta, while other calls go on.
    fn commit(self: *World, process: *Process) anyerror!void {
        const handle = process.handle.?;
        const live = &handle.live;
        if (!live.is_written()) return; // nothing to fold
        const allocator = self.arena.allocator();
        var seen: Commits = .{ process.commits_seen, process.failed_commits_seen };
        var view = try live.take_view();
        defer view.release();
        var chosen: std.ArrayList(u32) = .empty;
        for (0..view.segments.len) |i| if (self.prng.boolean()) try chosen.append(allocator, @intCast(i));
        const with_delta = chosen.items.len == 0 or self.prng.boolean();
        var rows: std.ArrayList(SegmentRow) = .empty;
        var taken: std.ArrayList(u64) = .empty;
        for (chosen.items) |i| {
            const segment = handle.segments.get(view.segments[i].path).?;
            var bits = base.BitSet.over(try taken.addManyAsSlice(allocator, base.BitSet.words_for(segment.len)), segment.len);
            @memset(bits.words, 0);
            for (segment, 0..) |row, vertex| {
                if (view.segments[i].deleted) |deleted| if (deleted.contains(vertex)) continue;
                bits.insert(@intCast(vertex));
                try rows.append(allocator, row);
            }
        }
        const stored = rows.items.len;
        if (with_delta) {
            var first: u32 = 0;
            for (view.records) |record| {
                for (record.rows.ids.numbers, std.mem.bytesAsSlice(f32, record.rows.vectors), 0..) |id, x, i| {
                    if (!view.deleted.contains(first + i)) try rows.append(allocator, .{ .id = id, .value = @intFromFloat(x) });
                }
                first += record.rows.count;
            }
        }
        if (!try self.others(process)) return;
        if (!with_delta and self.prng.boolean()) { // as a merge that goes on after its writer was killed
            const later = try live.take_view();
            const numbers = try numbers_in(allocator, later, view, chosen.items);
            view.release();
            view = later;
            @memcpy(chosen.items, numbers orelse return); // another commit took one of them
        }
        var what: live_room.Commit = .{ .view = view, .segments = chosen.items, .taken = taken.items, .with_delta = with_delta, .segment = null };
        if (with_delta and chosen.items.len > 0 and self.prng.boolean()) { // what it took of the delta becomes a segment before it ends
            const added = try allocator.dupe(SegmentRow, rows.items[stored..]);
            const path = try self.put(process, .{ .view = view, .segments = &.{}, .taken = &.{}, .with_delta = true, .segment = null }, added, seen) orelse return;
            seen = .{ process.commits_seen, process.failed_commits_seen };
            const later = try process.handle.?.live.take_view();
            const numbers = try numbers_in(allocator, later, view, chosen.items);
            view.release();
            view = later;
            what.view = view;
            what.with_delta = false;
            what.segments = numbers orelse return;
            if (added.len > 0) {
                const number = for (view.segments, 0..) |segment, i| {
                    if (std.mem.eql(u8, segment.path, path)) break @as(u32, @intCast(i));
                } else return;
                what.segments = try std.mem.concat(allocator, u32, &.{ what.segments, &.{number} });
                var bits = base.BitSet.over(try taken.addManyAsSlice(allocator, base.BitSet.words_for(added.len)), added.len);
                @memset(bits.words, 0);
                for (0..added.len) |row| bits.insert(@intCast(row));
                what.taken = taken.items;
            }
            if (!try self.others(process)) return;
        }
        _ = try self.put(process, what, rows.items, seen);
    }

    /// The numbers that segments of a view have in a later one; null: one of them is gone.
    fn numbers_in(allocator: std.mem.Allocator, later: *const live_room.View, view: *const live_room.View, segments: []const u32) !?[]u32 {
        const numbers = try allocator.dupe(u32, segments);
        for (numbers) |*number| number.* = for (later.segments, 0..) |segment, i| {
            if (std.mem.eql(u8, segment.path, view.segments[number.*].path)) break @intCast(i);
        } else return null;
        return numbers;
    }

    /// A segment of these rows, in any order, takes the place of its sources. Returns its name, or null where nothing was done,
    /// which may only be where another commit came first, that is, where there are others than it had `seen`.
    fn put(self: *World, process: *Process, sources: live_room.Commit, rows: []SegmentRow, seen: Commits) !?[]const u8 {
        self.prng.shuffle(SegmentRow, rows);
        var path: []const u8 = "";
        var what = sources;
        if (rows.len > 0) {
            path = try self.new_segment(process);
            try self.write_segment(process.handle.?, path, rows);
        }
        // A view of one handle is good for another.
        while (if (rows.len > 0) self.holder_of(process, path) else process.handle) |handle| {
            if (rows.len > 0) {
                what.segment = .{ .path = path, .uuid = path, .ids = .{ .numbers = try handle.ids_of(rows) } };
                try handle.keep_rows(path, rows);
            }
            errdefer self.failed_commits += 1;
            const done = try handle.live.commit(what, &handle.diagnostic);
            try handle.store.expect_alive();
            self.tell("{d} commits: {t}", .{ self.number_of(process), done.outcome });
            switch (done.outcome) {
                .done => {
                    process.failed_commits_seen = self.failed_commits;
                    self.commits += 1;
                    self.keep(process, process.unlocked_at);
                    return path;
                },
                .moved => try self.open_again(process),
                .stale => return if (std.meta.eql(seen, .{ self.commits, self.failed_commits })) error.StaleWithoutCause else null,
                else => return error.UnexpectedOutcome,
            }
        }
        return null;
    }

    // ---- a whole world ----

    fn make(self: *World) !void {
        var store: SimulatedStore = .{ .disk = &self.disk };
        defer store.deinit();
        const n = self.built_rows;
        if (n == 0) {
            var diagnostic: live_room.Diagnostic = .{};
            return live_room.create(self.allocator, &store, .{ .dim = 1, .metric = .l2, .dtype = .f32, .seed = self.prng.next() }, &diagnostic);
        }
        const rows = try self.arena.allocator().alloc(SegmentRow, n);
        for (rows, self.model.now()[0..n], 0..) |*row, value, id| row.* = .{ .id = @intCast(id), .value = value };
        self.prng.shuffle(SegmentRow, rows);
        return handle_file.build(self.allocator, &store, rows);
    }

    fn life(self: *World, crash_at: u64) !void {
        try self.make();
        if (self.prng.below(3) == 0) self.disk.faults.full = @intCast(4 + self.prng.below(40));
        if (self.prng.below(3) == 0) self.disk.faults.sync = @intCast(4 + self.prng.below(40));
        self.disk.crash_at = self.disk.changes + crash_at;
        self.disk.on_event = on_event;
        for (0..20 + self.prng.below(60)) |_| {
            const process = &self.processes[@intCast(self.prng.below(self.processes.len))];
            try self.step(process);
            if (self.failure) |err| return err;
            if (!self.disk.crashed) try self.follow_all();
            if (self.failure) |err| return err;
            if (self.prng.below(100) == 0) try self.delete_page();
            if (self.prng.below(60) == 0) self.disk.crashed = true;
            if (self.disk.crashed) try self.cut_power();
        }
        try self.end();
    }

    /// In the end the world is well again, and all that was acknowledged is there.
    fn end(self: *World) !void {
        self.disk.faults = .{};
        self.disk.crash_at = std.math.maxInt(u64);
        self.depth = depth_max; // no call comes in between any more
        for (self.processes) |*process| if (process.handle != null) self.close(process);
        const process = &self.processes[0];
        for (0..2) |_| {
            process.is_busy = true;
            defer process.is_busy = false;
            const handle = try self.allocator.create(Handle);
            errdefer if (process.handle == null) self.allocator.destroy(handle);
            try handle.open(self.allocator, .{ .disk = &self.disk }, .{ .writable = true, .seed = 1 }, self.built);
            try self.adopt(process, handle);
            try testing.expectEqual(self.model.sequence, handle.live.sequence);
            if (self.wrote) try self.check_litter(&handle.live);
            try self.take_moment(process);
            try self.insert(process, .upsert);
            try self.commit(process);
            process.call = null;
            try self.follow(process);
            self.close(process);
        }
    }

    /// Only what the manifest names is there, and the newest torn end of a log.
    fn check_litter(self: *World, live: *const Live) !void {
        var torn: u32 = 0;
        names: for (self.disk.names.keys()) |name| {
            if (std.mem.indexOfScalar(u8, name, '/') != null) continue;
            for ([_][]const u8{ live_room.manifest.file_name, live_room.page.file_name, live.wal_name.? }) |known| if (std.mem.eql(u8, name, known)) continue :names;
            for (live.segments.items) |segment| {
                if (std.mem.eql(u8, name, segment.path)) continue :names;
                if (segment.file) |file| if (std.mem.eql(u8, name, file)) continue :names;
            }
            torn += @intFromBool(std.mem.endsWith(u8, name, ".torn"));
            if (!std.mem.endsWith(u8, name, ".torn") or torn > 1) {
                std.debug.print("{s} is left\n", .{name});
                return error.Litter;
            }
        }
    }
};

/// Returns how many calls came in between.
pub fn run(allocator: std.mem.Allocator, seed: u64, crash_at: ?u64) anyerror!u64 {
    var prng = base.Prng.init(seed);
    const is_numbered = prng.below(3) == 0;
    const built_rows: u16 = if (prng.below(3) == 0) @intCast(1 + prng.below(12)) else 0;
    var state: State = @splat(0);
    for (state[0..built_rows], 1..) |*value, i| value.* = @intCast(i);
    var processes: [process_max]Process = undefined;
    for (&processes, 0..) |*process, i| process.* = .{ .is_writer = i == 0 or prng.below(4) > 0 };
    var world: World = .{
        .allocator = allocator,
        .arena = .init(std.heap.c_allocator),
        .disk = .init(prng.next()),
        .prng = .init(prng.next()),
        .model = try .init(allocator, &state, if (is_numbered) built_rows else 0),
        .processes = processes[0 .. 1 + prng.below(process_max)],
        .is_numbered = is_numbered,
        .built = if (built_rows == 0) .{} else .{ .kind = if (is_numbered) .row else .numbers, .next_row = if (is_numbered) built_rows else 0 },
        .built_rows = built_rows,
        .next_value = built_rows + 1,
        .nesting = ([_]u64{ 0, 8, 30, 100 })[prng.below(4)],
    };
    world.disk.tells = worlds.only() != null;
    defer {
        world.disk.crashed = true; // after a failure descriptors may be open
        for (world.processes) |*process| if (process.handle != null) world.close(process);
        world.model.deinit();
        world.disk.deinit();
        world.arena.deinit();
    }
    const at = crash_at orelse prng.below(600);
    world.life(at) catch |err| {
        std.debug.print("seed {d}, crash at change {d}: {t}\n", .{ seed, at, world.failure orelse err });
        return err;
    };
    return world.nested;
}
