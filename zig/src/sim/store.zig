//! A file system decided by a seed: a crash loses, keeps or tears (at 512 bytes) unsynced writes, names apart from
//! contents; a sync may fail, and then a later one does not make up for it; the disk may be full. Any process that uses it may
//! be killed at any of its operations. The contract is zig/src/live/store.zig.
const std = @import("std");
const base = @import("base");
const live_room = @import("live");

const sector_bytes = 512;
const page_name = live_room.page.file_name;
pub const Page = live_room.page.Page;

pub const Faults = struct {
    /// One write in `full` finds the disk full, in the middle; 0: none.
    full: u32 = 0,
    /// One sync in `sync` fails; 0: none.
    sync: u32 = 0,
};

/// The disk and the system above it: what all processes share.
pub const SimulatedDisk = struct {
    const Change = struct {
        at: u64,
        what: union(enum) {
            write: struct { offset: u64, bytes: []const u8 },
            truncate: u64,
        },
    };
    const Node = struct {
        is_folder: bool = false,
        /// Locked by the store that removes it.
        remover: ?*SimulatedStore = null,
        /// Content that a crash keeps for certain.
        durable: std.ArrayList(u8) = .empty,
        current: std.ArrayList(u8) = .empty,
        unsynced: std.ArrayList(Change) = .empty,
        /// Syncs that failed. As in Linux, each descriptor that was open then reports it once.
        failed_syncs: u32 = 0,
        /// The content of a page that is mapped.
        page: ?*Page = null,
    };
    const NameChange = struct {
        const What = union(enum) {
            set: struct { name: []const u8, node: u32 },
            remove: []const u8,
            rename: struct { from: []const u8, to: []const u8, node: u32 },
        };

        at: u64,
        what: What,

        fn folder(self: NameChange) []const u8 {
            return folder_of(switch (self.what) {
                .set => |set| set.name,
                .remove => |name| name,
                .rename => |renamed| renamed.to,
            });
        }
    };
    const Names = std.StringArrayHashMapUnmanaged(u32);

    const Descriptor = struct {
        /// Null: closed.
        owner: ?*SimulatedStore,
        node: u32,
        /// To read and write, for a shared lock of a folder, or of a page.
        kind: enum { file, hold, lease },
        failed_syncs_seen: u32,
    };

    /// Told before an operation begins, but `locked`, which follows it.
    pub const Event = enum { read, change, sync, lock, locked, unlock };

    arena: std.heap.ArenaAllocator,
    prng: base.Prng,
    faults: Faults = .{},
    nodes: std.ArrayList(Node) = .empty,
    names: Names = .empty,
    durable_names: Names = .empty,
    unsynced_names: std.ArrayList(NameChange) = .empty,
    descriptors: std.ArrayList(Descriptor) = .empty,
    /// Changes made so far, and the one at which the power goes.
    changes: u64 = 0,
    crash_at: u64 = std.math.maxInt(u64),
    crashed: bool = false,
    /// The store that holds the lock of the folder.
    lock_holder: ?*SimulatedStore = null,
    boot_id: [16]u8 = @splat(1),
    /// Prints what happens.
    tells: bool = false,
    /// Contents that a page had: a power cut leaves any.
    page_states: std.ArrayList(Page) = .empty,
    /// Anything may happen meanwhile, but a change of what this operation is about.
    on_event: ?*const fn (*SimulatedDisk, *SimulatedStore, Event) void = null,

    pub fn init(seed: u64) SimulatedDisk {
        return .{ .arena = .init(std.heap.c_allocator), .prng = .init(seed) };
    }

    pub fn deinit(self: *SimulatedDisk) void {
        self.arena.deinit();
    }

    fn tell(self: *const SimulatedDisk, comptime text: []const u8, args: anytype) void {
        if (self.tells) std.debug.print(text ++ "\n", args);
    }

    fn folder_of(name: []const u8) []const u8 {
        const at = std.mem.lastIndexOfScalar(u8, name, '/') orelse return ".";
        return name[0..at];
    }

    /// The power is gone, and comes back: of what was not synced any subset is there.
    pub fn restart(self: *SimulatedDisk) !void {
        const share = self.survival();
        for (self.nodes.items) |*node| {
            for (node.unsynced.items) |one| try self.survive(node, one, share);
            node.unsynced.clearRetainingCapacity();
            node.current.clearRetainingCapacity();
            try node.current.appendSlice(self.arena.allocator(), node.durable.items);
            node.remover = null;
            node.failed_syncs = 0;
            if (node.page != null) try self.restart_page(node);
        }
        for (self.unsynced_names.items) |one| if (self.prng.float() < share) try self.apply_name(&self.durable_names, one.what);
        self.unsynced_names.clearRetainingCapacity();
        // Files in a folder without a name are gone.
        var i: usize = 0;
        while (i < self.durable_names.count()) {
            const folder = folder_of(self.durable_names.keys()[i]);
            if (std.mem.eql(u8, folder, ".") or self.durable_names.contains(folder)) i += 1 else self.durable_names.orderedRemoveAt(i);
        }
        self.names = try self.durable_names.clone(self.arena.allocator());
        for (self.descriptors.items) |*one| one.owner = null;
        self.crashed = false;
        self.lock_holder = null;
        self.prng.source.fill(&self.boot_id);
        self.crash_at = std.math.maxInt(u64);
    }

    /// No sync covers a page: any state that it ever had is there.
    fn restart_page(self: *SimulatedDisk, node: *Node) !void {
        const page = try self.arena.allocator().create(Page);
        const states = self.page_states.items;
        const at = self.prng.below(states.len + 1);
        if (at < states.len) page.* = states[@intCast(at)] else @memset(std.mem.asBytes(page), 0);
        node.page = page;
    }

    fn keep_page_state(self: *SimulatedDisk) void {
        const node = self.names.get(page_name) orelse return;
        const page = self.nodes.items[node].page orelse return;
        if (self.prng.below(8) == 0) self.page_states.append(self.arena.allocator(), page.*) catch {};
    }

    fn survival(self: *SimulatedDisk) f32 {
        return switch (self.prng.below(4)) {
            0 => 0,
            1 => 1,
            2 => 0.5,
            else => self.prng.float(),
        };
    }

    fn survive(self: *SimulatedDisk, node: *Node, one: Change, share: f32) !void {
        const allocator = self.arena.allocator();
        switch (one.what) {
            .truncate => |length| if (self.prng.float() < share) try set_length(allocator, &node.durable, length),
            .write => |write| {
                var at: u64 = write.offset;
                const end = write.offset + write.bytes.len;
                while (at < end) {
                    const stop = @min(end, (at / sector_bytes + 1) * sector_bytes);
                    if (self.prng.float() < share) try put(allocator, &node.durable, at, write.bytes[@intCast(at - write.offset)..@intCast(stop - write.offset)]);
                    at = stop;
                }
            },
        }
    }

    fn put(allocator: std.mem.Allocator, content: *std.ArrayList(u8), offset: u64, bytes: []const u8) !void {
        const end: usize = @intCast(offset + bytes.len);
        if (content.items.len < end) try set_length(allocator, content, end);
        @memcpy(content.items[@intCast(offset)..end], bytes);
    }

    fn set_length(allocator: std.mem.Allocator, content: *std.ArrayList(u8), length: u64) !void {
        const before = content.items.len;
        try content.resize(allocator, @intCast(length));
        if (length > before) @memset(content.items[before..], 0);
    }

    fn apply_name(self: *SimulatedDisk, names: *Names, what: NameChange.What) !void {
        const allocator = self.arena.allocator();
        switch (what) {
            .set => |set| try names.put(allocator, set.name, set.node),
            .remove => |name| _ = names.orderedRemove(name),
            .rename => |rename| {
                _ = names.orderedRemove(rename.from);
                try names.put(allocator, rename.to, rename.node);
            },
        }
    }

    fn add_node(self: *SimulatedDisk, node: Node) !u32 {
        try self.nodes.append(self.arena.allocator(), node);
        return @intCast(self.nodes.items.len - 1);
    }

    fn note_name(self: *SimulatedDisk, what: NameChange.What) !void {
        try self.apply_name(&self.names, what);
        try self.unsynced_names.append(self.arena.allocator(), .{ .at = self.changes, .what = what });
    }

    /// A user takes a file away.
    pub fn remove_by_hand(self: *SimulatedDisk, name: []const u8) !void {
        if (self.names.getKey(name)) |kept| try self.note_name(.{ .remove = kept });
    }

    /// One that another store than `except` has open.
    fn find_descriptor(self: *const SimulatedDisk, node: u32, kind: @FieldType(Descriptor, "kind"), except: ?*SimulatedStore) ?*Descriptor {
        for (self.descriptors.items) |*one| {
            if (one.owner != null and one.owner != except and one.node == node and one.kind == kind) return one;
        }
        return null;
    }

    pub fn is_linked(self: *const SimulatedDisk, node: u32) bool {
        return std.mem.indexOfScalar(u32, self.names.values(), node) != null;
    }

    /// Whether a crash keeps the first `bytes` of a file for certain.
    pub fn is_durable(self: *const SimulatedDisk, node: u32, bytes: u64) bool {
        const of = &self.nodes.items[node];
        for (of.unsynced.items) |one| switch (one.what) {
            .write => |write| if (write.offset < bytes) return false,
            .truncate => |length| if (length < bytes) return false,
        };
        const end: usize = @intCast(bytes);
        return of.durable.items.len >= end and std.mem.eql(u8, of.durable.items[0..end], of.current.items[0..end]);
    }
};

/// The folder as one handle of a process has it open.
pub const SimulatedStore = struct {
    pub const File = u32;
    pub const Map = []align(8) const u8;
    pub const Hold = u32;

    disk: *SimulatedDisk,
    /// The operation at which its process is killed, counted from now on.
    kill_in: u64 = std.math.maxInt(u64),
    /// No operation of it does anything any more.
    is_dead: bool = false,
    /// When it was killed.
    had_lock: bool = false,
    /// The last is the page in use; callers may have pointers to the others.
    pages: std.ArrayList(struct { node: u32, at_kill: Page = undefined }) = .empty,
    /// It never finds a page: it sees the folder as it is.
    ignores_page: bool = false,
    /// Another store held the lock when it was asked for last.
    timed_out: bool = false,

    /// Every descriptor must be closed.
    pub fn deinit(self: *SimulatedStore) void {
        if (!self.has_ended()) for (self.disk.descriptors.items) |one| {
            if (one.owner == self and one.kind != .lease) std.debug.panic("a descriptor of node {d} is left open", .{one.node});
        };
        self.exit();
    }

    /// The process is gone, whatever it was doing.
    pub fn exit(self: *SimulatedStore) void {
        const disk = self.disk;
        for (disk.descriptors.items) |*one| if (one.owner == self) {
            one.owner = null;
        };
        for (disk.nodes.items) |*node| if (node.remover == self) {
            node.remover = null;
        };
        if (disk.lock_holder == self) disk.lock_holder = null;
        // What a process writes to a page after it was killed is not there.
        if (self.is_dead) for (self.pages.items) |one| {
            disk.nodes.items[one.node].page.?.* = one.at_kill;
        };
        self.pages = .empty;
    }

    fn has_ended(self: *const SimulatedStore) bool {
        return self.is_dead or self.disk.crashed;
    }

    /// The caller of a process that was killed hears of nothing.
    pub fn expect_alive(self: *const SimulatedStore) error{Crashed}!void {
        if (self.has_ended()) return error.Crashed;
    }

    fn tell(self: *SimulatedStore, event: SimulatedDisk.Event) void {
        if (self.has_ended()) return;
        if (self.disk.on_event) |call| call(self.disk, self, event);
    }

    /// Every operation begins here. True: the process is killed in the middle of it.
    fn begin(self: *SimulatedStore, event: SimulatedDisk.Event) error{Crashed}!bool {
        self.tell(event);
        if (self.has_ended()) return error.Crashed;
        self.kill_in -= 1;
        if (self.kill_in > 0) return false;
        for (self.pages.items) |*one| one.at_kill = self.disk.nodes.items[one.node].page.?.*;
        self.is_dead = true;
        self.had_lock = self.disk.lock_holder == self;
        return true;
    }

    fn look(self: *SimulatedStore) error{Crashed}!void {
        if (try self.begin(.read)) return error.Crashed;
    }

    /// True: a kill or the end of all power comes in the middle of it.
    fn change(self: *SimulatedStore, event: SimulatedDisk.Event) error{Crashed}!bool {
        const is_killed = try self.begin(event);
        const disk = self.disk;
        disk.changes += 1;
        if (disk.changes >= disk.crash_at) disk.crashed = true;
        return is_killed or disk.crashed;
    }

    fn change_name(self: *SimulatedStore, what: SimulatedDisk.NameChange.What) !void {
        const ends = try self.change(.change);
        const disk = self.disk;
        switch (what) {
            .set => |set| disk.tell("  + {s}", .{set.name}),
            .remove => |name| disk.tell("  - {s}", .{name}),
            .rename => |renamed| disk.tell("  {s} -> {s}", .{ renamed.from, renamed.to }),
        }
        if (ends and disk.prng.boolean()) return error.Crashed;
        try disk.note_name(what);
        if (ends) return error.Crashed;
    }

    fn node_of(self: *SimulatedStore, name: []const u8) error{ FileNotFound, Crashed }!u32 {
        if (self.has_ended()) return error.Crashed;
        return self.disk.names.get(name) orelse error.FileNotFound;
    }

    fn own(self: *SimulatedStore, name: []const u8) ![]const u8 {
        return self.disk.arena.allocator().dupe(u8, name);
    }

    fn open_node(self: *SimulatedStore, node: u32, kind: @FieldType(SimulatedDisk.Descriptor, "kind")) !u32 {
        const disk = self.disk;
        try disk.descriptors.append(disk.arena.allocator(), .{ .owner = self, .node = node, .kind = kind, .failed_syncs_seen = disk.nodes.items[node].failed_syncs });
        return @intCast(disk.descriptors.items.len - 1);
    }

    pub fn node_of_file(self: *const SimulatedStore, file: File) u32 {
        const one = &self.disk.descriptors.items[file];
        std.debug.assert(one.owner == self);
        return one.node;
    }

    fn content(self: *const SimulatedStore, file: File) []const u8 {
        return self.disk.nodes.items[self.node_of_file(file)].current.items;
    }

    // ---- the contract ----

    pub fn lock(self: *SimulatedStore, _: u64) !bool {
        if (try self.begin(.lock)) return error.Crashed;
        const disk = self.disk;
        std.debug.assert(disk.lock_holder != self);
        self.timed_out = disk.lock_holder != null;
        if (self.timed_out) return false;
        disk.lock_holder = self;
        disk.keep_page_state();
        self.tell(.locked);
        return true;
    }

    pub fn unlock(self: *SimulatedStore) void {
        std.debug.assert(self.has_ended() or self.disk.lock_holder == self);
        const is_killed = self.begin(.unlock) catch return;
        if (!is_killed) self.disk.lock_holder = null;
    }

    pub fn open_page(self: *SimulatedStore, mode: enum { read, write }) !?*Page {
        if (self.ignores_page) return null;
        try self.look();
        const disk = self.disk;
        const allocator = disk.arena.allocator();
        if (!disk.names.contains(page_name)) {
            if (mode == .read) return null;
            const page = try allocator.create(Page);
            @memset(std.mem.asBytes(page), 0);
            const node = try disk.add_node(.{ .page = page });
            try self.change_name(.{ .set = .{ .name = page_name, .node = node } });
        }
        const node = try self.node_of(page_name);
        try self.pages.append(allocator, .{ .node = node });
        return disk.nodes.items[node].page.?;
    }

    /// Without the pause between two looks that the real one makes.
    pub fn page_is_linked(self: *SimulatedStore) !bool {
        try self.look();
        return self.disk.is_linked(self.pages.getLast().node);
    }

    pub fn take_lease(self: *SimulatedStore) !bool {
        try self.look();
        const node = self.pages.getLast().node;
        const is_alone = self.disk.find_descriptor(node, .lease, self) == null;
        _ = try self.open_node(node, .lease);
        return is_alone;
    }

    pub fn boot(self: *const SimulatedStore) [16]u8 {
        return self.disk.boot_id;
    }

    pub fn stat(self: *SimulatedStore, file: File) !live_room.Stat {
        try self.look();
        return .{ .size = self.content(file).len, .is_linked = self.disk.is_linked(self.node_of_file(file)) };
    }

    pub fn create(self: *SimulatedStore, name: []const u8) !File {
        if (self.has_ended()) return error.Crashed;
        if (self.disk.names.get(name)) |node| {
            const file = try self.open_node(node, .file);
            errdefer self.close(file);
            try self.truncate(file, 0);
            return file;
        }
        const folder = SimulatedDisk.folder_of(name);
        if (!std.mem.eql(u8, folder, ".")) _ = try self.node_of(folder);
        const node = try self.disk.add_node(.{});
        try self.change_name(.{ .set = .{ .name = try self.own(name), .node = node } });
        return self.open_node(node, .file);
    }

    pub fn open_file(self: *SimulatedStore, name: []const u8, _: std.fs.File.OpenMode) !File {
        try self.look();
        return self.open_node(try self.node_of(name), .file);
    }

    pub fn close(self: *SimulatedStore, file: File) void {
        const one = &self.disk.descriptors.items[file];
        std.debug.assert(one.owner == self or self.has_ended());
        if (one.owner == self) one.owner = null;
    }

    pub fn size(self: *SimulatedStore, file: File) !u64 {
        try self.look();
        return self.content(file).len;
    }

    pub fn read(self: *SimulatedStore, file: File, buffer: []u8, offset: u64) !usize {
        try self.look();
        const bytes = self.content(file);
        if (offset >= bytes.len) return 0;
        const len = @min(buffer.len, bytes.len - @as(usize, @intCast(offset)));
        @memcpy(buffer[0..len], bytes[@intCast(offset)..][0..len]);
        return len;
    }

    pub fn write(self: *SimulatedStore, file: File, bytes: []const u8, offset: u64) !void {
        const ends = try self.change(.change);
        const disk = self.disk;
        const is_full = disk.faults.full > 0 and disk.prng.below(disk.faults.full) == 0;
        const len: usize = if (ends or is_full) @intCast(disk.prng.below(bytes.len + 1)) else bytes.len;
        const allocator = disk.arena.allocator();
        const node = &disk.nodes.items[self.node_of_file(file)];
        disk.tell("  node {d} from {d} on: {d} of {d} bytes", .{ self.node_of_file(file), offset, len, bytes.len });
        const copy = try allocator.dupe(u8, bytes[0..len]);
        if (len > 0) {
            try SimulatedDisk.put(allocator, &node.current, offset, copy);
            try node.unsynced.append(allocator, .{ .at = disk.changes, .what = .{ .write = .{ .offset = offset, .bytes = copy } } });
        }
        if (ends) return error.Crashed;
        if (is_full) return error.NoSpaceLeft;
    }

    /// Covers what was written before it began.
    pub fn sync(self: *SimulatedStore, file: File) !void {
        const disk = self.disk;
        const began = disk.changes;
        const ends = try self.change(.sync);
        const one = &disk.descriptors.items[file];
        const node = &disk.nodes.items[self.node_of_file(file)];
        if (ends and disk.prng.boolean()) return error.Crashed;
        const fails = disk.faults.sync > 0 and disk.prng.below(disk.faults.sync) == 0;
        const share: f32 = if (fails) disk.survival() else 1;
        disk.tell("  node {d} {s}synced", .{ one.node, if (fails) "not " else "" });
        var count: usize = 0;
        for (node.unsynced.items) |unsynced| {
            if (unsynced.at > began) break;
            try disk.survive(node, unsynced, share);
            count += 1;
        }
        node.unsynced.replaceRangeAssumeCapacity(0, count, &.{}); // a later sync does not try again
        node.failed_syncs += @intFromBool(fails);
        const is_told = one.failed_syncs_seen < node.failed_syncs;
        one.failed_syncs_seen = node.failed_syncs;
        if (ends) return error.Crashed;
        if (is_told) return error.InputOutput;
    }

    pub fn truncate(self: *SimulatedStore, file: File, length: u64) !void {
        const ends = try self.change(.change);
        const disk = self.disk;
        if (ends and disk.prng.boolean()) return error.Crashed;
        const allocator = disk.arena.allocator();
        const node = &disk.nodes.items[self.node_of_file(file)];
        try SimulatedDisk.set_length(allocator, &node.current, length);
        try node.unsynced.append(allocator, .{ .at = disk.changes, .what = .{ .truncate = length } });
        if (ends) return error.Crashed;
    }

    pub fn rename(self: *SimulatedStore, from: []const u8, to: []const u8) !void {
        const node = try self.node_of(from);
        try self.change_name(.{ .rename = .{ .from = try self.own(from), .to = try self.own(to), .node = node } });
    }

    pub fn link(self: *SimulatedStore, from: []const u8, to: []const u8) !void {
        const node = try self.node_of(from);
        if (self.disk.names.contains(to)) return error.PathAlreadyExists;
        try self.change_name(.{ .set = .{ .name = try self.own(to), .node = node } });
    }

    pub fn remove(self: *SimulatedStore, name: []const u8) !void {
        _ = try self.node_of(name);
        try self.change_name(.{ .remove = try self.own(name) });
    }

    pub fn make_folder(self: *SimulatedStore, name: []const u8) !void {
        if (self.has_ended()) return error.Crashed;
        if (self.disk.names.contains(name)) return error.PathAlreadyExists;
        const node = try self.disk.add_node(.{ .is_folder = true });
        try self.change_name(.{ .set = .{ .name = try self.own(name), .node = node } });
    }

    pub fn remove_folder(self: *SimulatedStore, name: []const u8) !void {
        if (self.has_ended()) return error.Crashed;
        const names = &self.disk.names;
        var i: usize = 0;
        while (i < names.count()) {
            const inside = names.keys()[i];
            if (std.mem.eql(u8, SimulatedDisk.folder_of(inside), name)) try self.change_name(.{ .remove = inside }) else i += 1;
        }
        if (names.contains(name)) try self.change_name(.{ .remove = try self.own(name) });
    }

    pub fn remove_unheld(self: *SimulatedStore, name: []const u8) !void {
        const number = try self.node_of(name);
        const disk = self.disk;
        if (disk.nodes.items[number].remover != null or disk.find_descriptor(number, .hold, null) != null) return;
        disk.nodes.items[number].remover = self;
        defer if (!self.is_dead) {
            disk.nodes.items[number].remover = null;
        };
        try self.remove_folder(name);
    }

    pub fn hold(self: *SimulatedStore, name: []const u8) !Hold {
        try self.look();
        const node = try self.node_of(name);
        if (self.disk.nodes.items[node].remover != null) return error.WouldBlock;
        return self.open_node(node, .hold);
    }

    pub fn release(self: *SimulatedStore, held: Hold) void {
        self.close(held);
    }

    pub fn sync_folder(self: *SimulatedStore, name: []const u8) !void {
        const disk = self.disk;
        const began = disk.changes;
        const ends = try self.change(.sync);
        if (ends and disk.prng.boolean()) return error.Crashed;
        if (disk.faults.sync > 0 and disk.prng.below(disk.faults.sync) == 0) return error.InputOutput;
        var kept: usize = 0;
        for (disk.unsynced_names.items) |one| {
            if (one.at <= began and std.mem.eql(u8, one.folder(), name)) {
                try disk.apply_name(&disk.durable_names, one.what);
            } else {
                disk.unsynced_names.items[kept] = one;
                kept += 1;
            }
        }
        disk.unsynced_names.shrinkRetainingCapacity(kept);
        if (ends) return error.Crashed;
    }

    pub fn exists(self: *SimulatedStore, name: []const u8) !bool {
        try self.look();
        return self.disk.names.contains(name);
    }

    pub fn list(self: *SimulatedStore, arena: std.mem.Allocator) ![]const []const u8 {
        if (self.has_ended()) return error.Crashed;
        var found: std.ArrayList([]const u8) = .empty;
        for (self.disk.names.keys()) |name| {
            if (std.mem.indexOfScalar(u8, name, '/') == null) try found.append(arena, try arena.dupe(u8, name));
        }
        return found.items;
    }

    pub fn map(self: *SimulatedStore, name: []const u8) !Map {
        try self.look();
        const node = try self.node_of(name);
        const bytes = self.disk.nodes.items[node].current.items;
        if (bytes.len == 0) return error.EndOfStream;
        const copy = try self.disk.arena.allocator().alignedAlloc(u8, .@"8", bytes.len);
        @memcpy(copy, bytes);
        return copy;
    }

    pub fn unmap(_: *SimulatedStore, _: Map) void {}
};

test "what was synced survives, what was not survives in parts of a sector, names apart from contents" {
    var lost: u32 = 0;
    var kept: u32 = 0;
    var torn: u32 = 0;
    for (0..200) |seed| {
        var disk = SimulatedDisk.init(seed);
        defer disk.deinit();
        var store: SimulatedStore = .{ .disk = &disk };
        const file = try store.create("a");
        try store.write(file, "synced", 0);
        try store.sync(file);
        try store.sync_folder(".");
        const more: [2 * sector_bytes]u8 = @splat('x');
        try store.write(file, &more, sector_bytes);
        try std.testing.expect(disk.is_durable(0, 6) and !disk.is_durable(0, sector_bytes + 1));
        store.close(try store.create("b"));
        try disk.restart();
        try std.testing.expectEqualStrings("synced", disk.nodes.items[0].current.items[0..6]);
        const count = std.mem.count(u8, disk.nodes.items[0].current.items, "x");
        try std.testing.expect(count % sector_bytes == 0);
        torn += @intFromBool(count == sector_bytes);
        if (disk.names.contains("b")) kept += 1 else lost += 1;
    }
    try std.testing.expect(lost > 20 and kept > 20 and torn > 20);
}

test "a rename is there or not; of a folder without a name nothing is left" {
    for (0..100) |seed| {
        var disk = SimulatedDisk.init(seed);
        defer disk.deinit();
        var store: SimulatedStore = .{ .disk = &disk };
        for ([_][]const u8{ "a", "b" }) |name| {
            const file = try store.create(name);
            try store.write(file, name, 0);
            try store.sync(file);
        }
        try store.make_folder("f");
        try store.link("a", "f/a");
        try store.sync_folder("f");
        if (seed % 2 == 0) try store.sync_folder(".");
        try store.rename("a", "b");
        try disk.restart();
        if (seed % 2 == 0) {
            try std.testing.expectEqual(1, @intFromBool(disk.names.contains("a")) + @as(u32, @intFromBool(disk.nodes.items[disk.names.get("b").?].current.items[0] == 'a')));
            try std.testing.expect(disk.names.contains("f/a"));
        } else try std.testing.expectEqual(disk.names.contains("f"), disk.names.contains("f/a"));
    }
}

test "locks end with their process, a file without a name stays as long as it is open, and a failed sync is reported to each process that has it open" {
    var disk = SimulatedDisk.init(1);
    defer disk.deinit();
    var stores: [2]SimulatedStore = @splat(.{ .disk = &disk });
    try std.testing.expect(try stores[0].lock(0));
    try std.testing.expect(!try stores[1].lock(0));
    const file = try stores[0].create("a");
    try stores[0].write(file, "content", 0);
    const other = try stores[1].open_file("a", .read_only);
    try stores[0].make_folder("f");
    _ = try stores[0].hold("f");
    try stores[1].remove_unheld("f");
    try std.testing.expect(disk.names.contains("f"));
    try stores[0].remove("a");
    try std.testing.expect(!(try stores[1].stat(other)).is_linked);
    disk.faults.sync = 1;
    try std.testing.expectError(error.InputOutput, stores[0].sync(file));
    disk.faults.sync = 0;
    try std.testing.expectError(error.InputOutput, stores[1].sync(other));
    try stores[1].sync(other);
    stores[0].kill_in = 1;
    stores[0].unlock();
    try std.testing.expect(!try stores[1].lock(0));
    stores[0].exit();
    try std.testing.expect(try stores[1].lock(0));
    try stores[1].remove_unheld("f");
    try std.testing.expect(!disk.names.contains("f"));
    try std.testing.expectEqual(7, try stores[1].size(other));
}
